"""Agents on the Hugging Face Hub: uploaded with what they reach, a film and a model card; downloaded as any file."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

import gymnasium as gym
import numpy as np

from bdpi.agents.environments import make_if_id
from bdpi.agents.evaluation import evaluate_policy
from bdpi.agents.schema import PATHS
from bdpi.envs.film import Film, Filmed, no_window

if TYPE_CHECKING:
    from bdpi.agents.ensemble import Ensemble

#: What an agent and its film are called in a repository.
AGENT: str = "agent.zip"
_FILM = "replay.gif"
_TAGS = ["deep-reinforcement-learning", "reinforcement-learning", "stable-baselines3", "bdpi"]

_CARD = """# {name}{place}
{film}
Trained for {steps:,} steps with bdpi ([paper](https://arxiv.org/abs/1903.04193)), reinforcement learning for when steps
are expensive, as an algorithm of Stable-Baselines3.{result}

```python
from {module} import {name}

agent = {name}.from_hub("{repo}")
{predict}, deterministic={deterministic})
```

`{file}` holds numbers and JSON, no pickle: loading it runs no code.
"""


def load_hub() -> ModuleType:
    """:raises ImportError: when it is not installed"""
    try:
        import huggingface_hub
    except ImportError as error:
        raise ImportError('the Hub needs huggingface_hub: pip install "bdpi[hub]"') from error
    return huggingface_hub


def push(
    agent: Ensemble,
    repo_id: str,
    env: gym.Env[Any, Any] | str | None,
    n_eval_episodes: int,
    deterministic: bool,
    film: bool,
    custom_objects: dict[str, Any] | None,
    commit: dict[str, Any],
) -> str:
    """See :meth:`bdpi.agents.ensemble.Ensemble.push_to_hub`.

    :param commit: ``private``, ``token`` and ``commit_message``
    """
    hub = load_hub()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        agent.save(folder / AGENT, exclude=PATHS)
        where, returns = "", list[float]()
        if env is not None:
            # What is uploaded is what plays: the agent itself, which may go on learning, is left alone.
            load = partial(type(agent).load, folder / AGENT, custom_objects=custom_objects)
            with no_window():
                made = cast("gym.Env[Any, Any]", make_if_id(env))
                where = made.spec.id if made.spec is not None else type(made.unwrapped).__name__
                if film and made.render_mode == "rgb_array" and "rgb_array" in made.metadata.get("render_modes", ()):
                    pictures = Film()
                    _play(load(env=Filmed(made, pictures)), 1, deterministic)
                    pictures.save(folder / _FILM)
                returns = _play(load(env=made), n_eval_episodes, deterministic)
                if made is not env:
                    made.close()
        card = _card(hub, agent, repo_id, where, returns, deterministic, (folder / _FILM).exists())
        (folder / "README.md").write_text(card, "utf-8")
        api = hub.HfApi(token=commit["token"])
        url = api.create_repo(repo_id, private=commit["private"], exist_ok=True)
        api.upload_folder(repo_id=url.repo_id, folder_path=folder, commit_message=commit["commit_message"])
    return str(url)


def _play(agent: Ensemble, n_episodes: int, deterministic: bool) -> list[float]:
    """Returns of episodes in the agent's own environment."""
    environments, normalizer = agent.get_env(), agent.get_vec_normalize_env()
    assert environments is not None
    if normalizer is not None:
        normalizer.training = False
    returns, _ = evaluate_policy(agent, environments, n_episodes, deterministic, return_episode_rewards=True)
    return cast("list[float]", returns)


def _card(
    hub: ModuleType, agent: Ensemble, repo_id: str, where: str, returns: list[float], deterministic: bool, film: bool
) -> str:
    """The model card, with the metadata by which the Hub finds and ranks agents of Stable-Baselines3."""
    name, module = type(agent).__name__, type(agent).__module__
    results, result = None, ""
    if returns:
        score, task = f"{np.mean(returns):.2f} +/- {np.std(returns):.2f}", "reinforcement-learning"
        of_what = {"task_type": task, "task_name": task, "dataset_type": where, "dataset_name": where}
        results = hub.EvalResult(**of_what, metric_type="mean_reward", metric_name="mean_reward", metric_value=score)
        way = f"with its {'most probable' if deterministic else 'drawn'} actions"
        result = f" Its return over {len(returns)} episodes, {way}: {score}."
    tags = [*_TAGS, where] if where else _TAGS
    data = hub.ModelCardData(library_name="stable-baselines3", tags=tags, model_name=name, eval_results=results)
    stacks = "# state is None where an episode begins\naction, state = agent.predict(observation, state"
    text = _CARD.format(
        name=name,
        predict=stacks if agent.n_stack > 1 else "action, _ = agent.predict(observation",
        module="bdpi" if module.startswith("bdpi.") else module,
        place=f" for {where}" if where else "",
        film=f"\n![The agent acts]({_FILM})\n" if film else "",
        steps=agent.num_timesteps,
        result=result,
        repo=repo_id,
        file=AGENT,
        deterministic=deterministic,
    )
    return f"---\n{data.to_yaml()}\n---\n\n{text}"
