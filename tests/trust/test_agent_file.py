"""What the file of a stranger's agent may set."""

import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from bdpi import BDPI
from bdpi.runs.config import RunConfig
from bdpi.runs.errors import RunError
from bdpi.runs.train import prepare, prepare_resumption
from small import Walk, fingerprint, quick_agent


def changed(path: Path, others: dict[str, Any] | None = None, **attributes: Any) -> Path:
    """A saved agent with other attributes, or with others beside them."""
    with zipfile.ZipFile(path) as archive:
        document, arrays = json.loads(archive.read("agent.json")), archive.read("arrays.safetensors")
    document |= others or {}
    document["attributes"] |= attributes
    other = path.with_name("changed.zip")
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("agent.json", json.dumps(document))
        archive.writestr("arrays.safetensors", arrays)
    return other


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("agent") / "agent.zip"
    quick_agent().learn(20).save(path)
    return path


@pytest.mark.parametrize("name", ["autosave", "journal", "predict", "_learn_once", "replay_buffer", "anything"])
def test_only_declared_attributes_are_taken_from_a_file(saved: Path, name: str) -> None:
    with pytest.raises(ValueError, match=f"sets '{name}'"):
        BDPI.load(changed(saved, **{name: "thesis.txt"}), env=Walk())


def test_a_path_in_a_file_is_never_written(saved: Path, tmp_path: Path) -> None:
    loaded = BDPI.load(changed(saved, tensorboard_log=str(tmp_path / "board")), env=Walk())
    assert loaded.tensorboard_log is None
    loaded.learn(20)
    assert not (tmp_path / "board").exists()
    assert BDPI.load(saved, env=Walk(), tensorboard_log="board").tensorboard_log == "board"


def with_part(path: Path, name: str, text: str, way: int = zipfile.ZIP_STORED) -> Path:
    """A saved agent with another part, or with a part replaced."""
    other = path.with_name("other.zip")
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(other, "w") as new:
        for part in archive.namelist():
            if part != name:
                new.writestr(part, archive.read(part))
        new.writestr(name, text, way)
    return other


def test_the_summary_for_other_programs_is_never_read(saved: Path) -> None:
    with zipfile.ZipFile(saved) as archive:
        summary = json.loads(archive.read("data"))
    assert (summary["class"], summary["n_critics"], summary["num_timesteps"]) == ("BDPI", quick_agent().n_critics, 20)
    assert not [name for name in summary if name.startswith("_")]
    observation, intact = Walk().reset()[0], BDPI.load(saved)
    for lie in (
        "no JSON",
        '{"class": "PPO", "gamma": 7}',
        '{"policy_class": {":serialized:": "gAR9lC4="}}',
        "[" * 10**6,
    ):
        loaded = BDPI.load(with_part(saved, "data", lie))
        assert (loaded.gamma, loaded.num_timesteps) == (intact.gamma, 20)
        assert loaded.predict(observation, deterministic=True)[0] == intact.predict(observation, deterministic=True)[0]
    with pytest.raises(ValueError, match="data is compressed"):
        BDPI.load(with_part(saved, "data", " " * 10**6, zipfile.ZIP_DEFLATED))
    with pytest.raises(ValueError, match="damaged"):
        BDPI.load(with_part(saved, "policy.pth", "{}"))


BAD = [
    ("n_threads", 2_000_000_000),
    ("n_envs", 0),
    ("gamma", 1.5),
    ("num_timesteps", -1),
    ("num_timesteps", True),
    ("learning_rate", "fast"),
    ("batch_size", {"is": "class", "name": "torch.nn.ReLU"}),
    ("policy_kwargs", {"net_arch": [30_000, 30_000]}),
    ("policy_kwargs", {"net_arch": "wide"}),
    ("observation_space", {"is": "space", "space": {"type": "Discrete", "n": 9_000_000, "start": 0}}),
    ("_episodes", {"sums": [], "steps": []}),
    ("_draws", {"keeps": [], "returns_kept": [], "returns_other": []}),
    ("_draws", {"keeps": [False], "returns_kept": ["much"], "returns_other": []}),
    ("_collected", [1]),
    ("_generator", {"is": "generator", "state": {"bit_generator": "PCG64"}}),
    ("_generator", {"is": "generator", "state": {"bit_generator": []}}),
    ("observation_space", {"is": "space"}),
    ("policy_class", {"is": "class", "name": ["x"]}),
]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_a_value_out_of_range_or_of_another_type_is_refused(saved: Path, name: str, value: Any) -> None:
    with pytest.raises(ValueError, match="damaged"):
        BDPI.load(changed(saved, **{name: value}), env=Walk())


@pytest.mark.parametrize("more", ["anything", "attributes", "", 7, None, ["policy"], {"policy": 1}])
def test_parts_that_no_agent_has_are_not_looked_for(saved: Path, more: Any) -> None:
    loaded = BDPI.load(changed(saved, {"parts": ["policy", "learner", more]}), env=Walk())
    assert fingerprint(loaded) == fingerprint(BDPI.load(saved))


@pytest.mark.parametrize("parts", [None, 7, True, [], {}, "", ["policy"], ["learner"], ["policy", "learner", "replay"]])
def test_parts_that_are_not_there_are_named(saved: Path, parts: Any) -> None:
    with pytest.raises(ValueError, match=r"damaged|is not a replay memory"):
        BDPI.load(changed(saved, {"parts": parts}), env=Walk())


NORMALIZER = {"training": 1, "norm_obs": "yes", "norm_reward": None, "clip_obs": "10", "clip_reward": [10.0]}
NORMALIZER |= {"gamma": {}, "epsilon": None, "norm_obs_keys": "eye"}


@pytest.mark.parametrize("name", NORMALIZER)
def test_settings_of_a_normalizer_have_their_types(tmp_path: Path, name: str) -> None:
    def environment() -> VecNormalize:
        return VecNormalize(DummyVecEnv([Walk]))

    quick_agent(environment()).learn(20).save(path := tmp_path / "agent.zip")
    with zipfile.ZipFile(path) as archive:
        known = json.loads(archive.read("agent.json"))["normalizer"]
    assert known.keys() == NORMALIZER.keys()
    for env in (Walk(), environment()):
        BDPI.load(path, env=env)
        with pytest.raises(ValueError, match=f"damaged: {name} of VecNormalize is"):
            BDPI.load(changed(path, {"normalizer": known | {name: NORMALIZER[name]}}), env=env)


@pytest.mark.parametrize("settings", [{"n_steps": 3}, {"n_stack": 3}, {"optimize_memory_usage": True}])
def test_a_memory_is_loaded_at_the_cost_of_what_it_holds(tmp_path: Path, settings: dict[str, Any]) -> None:
    """Not of its capacity: counted in calls of functions, because seconds depend on the machine."""

    def calls_to_load(buffer_size: int) -> int:
        quick_agent(buffer_size=buffer_size, **settings).learn(30).save(tmp_path / "agent", include_buffer=True)
        calls = 0

        def count(frame: Any, event: str, _: Any) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

        sys.setprofile(count)
        try:
            loaded = BDPI.load(tmp_path / "agent", env=Walk())
        finally:
            sys.setprofile(None)
        assert len(loaded.replay_buffer) == 30
        return calls

    calls_to_load(200)  # what is imported late, is now
    assert calls_to_load(100_000) < calls_to_load(200) + 10_000


def test_what_cannot_be_loaded_is_not_saved(tmp_path: Path) -> None:
    agent = quick_agent()
    with pytest.raises(ValueError, match="declare it"):
        agent.save(tmp_path / "agent", include=["autosave"])


SMALL = {"n_critics": 2, "fit_steps": 1, "batch_size": 8}


def test_resume_writes_no_file_that_config_json_names(tmp_path: Path) -> None:
    thesis = tmp_path / "thesis.txt"
    files = {"autosave": str(thesis), "autosave_minutes": 1e-6}
    session = prepare(
        RunConfig(environment="CartPole-v1", episodes=2, hyperparameters={**SMALL, **files}), tmp_path / "run"
    )
    session.draws = False
    session.run()
    thesis.write_text("mine")
    with pytest.raises(RunError, match=r"thesis\.txt as autosave.*--trust"):
        prepare_resumption(tmp_path / "run", episodes=4)
    assert thesis.read_text() == "mine"


@pytest.mark.parametrize("name", ["entropy.f32", "monitor.csv", "error.txt", "policy.gif"])
def test_links_out_of_a_run_are_not_followed(tmp_path: Path, name: str) -> None:
    config = RunConfig(environment="CartPole-v1", episodes=2, hyperparameters=SMALL, record_entropy=True)
    session = prepare(config, tmp_path / "run")
    session.draws = False
    session.run()
    mine = tmp_path / "mine"
    mine.write_bytes(b"0123456789" * 100)
    (tmp_path / "run" / name).unlink(missing_ok=True)
    (tmp_path / "run" / name).symlink_to(mine)
    with pytest.raises(RunError, match="is a link to"):
        prepare_resumption(tmp_path / "run", episodes=4)
    assert mine.read_bytes() == b"0123456789" * 100
