"""Calls as users of Stable-Baselines3's DQN write them, with nothing but the class exchanged."""

import inspect
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3 import DQN, HerReplayBuffer
from stable_baselines3.common.buffers import NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.vec_env import DummyVecEnv

from bdpi import ABCDQN, BDPI, ActorMimic, BootstrappedDQN, TabularBDPI, evaluate_policy
from bdpi.agents.buffers import TransitionBuffer
from small import QUICK, Walk, epochs_of, fingerprint

AGENTS = [BDPI, ActorMimic, ABCDQN, BootstrappedDQN]


def make(agent_class: Any = BDPI, env: Any = None, policy: str = "MlpPolicy", **arguments: Any) -> Any:
    return agent_class(policy, env or Walk(), seed=1, **{**QUICK, **arguments})


@pytest.mark.parametrize("agent_class", AGENTS)
def test_every_argument_of_dqn_is_taken(agent_class):
    given = {
        name: each.default
        for name, each in inspect.signature(DQN.__init__).parameters.items()
        if each.default is not each.empty
    }
    with pytest.warns(UserWarning, match="ignores") as caught:
        model = agent_class("MlpPolicy", "CartPole-v1", **{**given, "max_grad_norm": None, "learning_starts": 40})
    said = [str(each.message) for each in caught if "ignores" in str(each.message)]
    assert len(said) == 1
    for name in ("tau", "target_update_interval", "exploration_fraction"):
        assert name in said[0]
    assert "target networks" in said[0]
    model.learn(50)


def test_an_unknown_argument_is_answered_with_the_nearest_name():
    with pytest.raises(TypeError, match="did you mean learning_starts"):
        make(learning_start=100)
    with pytest.raises(ValueError, match="learning_starts must be"):
        make(learning_starts=-1)


@pytest.mark.parametrize(("n_envs", "batch_size"), [(1, 100), (3, 99)])
def test_a_small_memory_makes_small_batches_where_none_were_asked_for(n_envs, batch_size):
    env, few = DummyVecEnv([Walk] * n_envs), {"n_critics": 2, "fit_steps": 1, "seed": 1}
    with pytest.warns(UserWarning, match=f"batch_size is {batch_size} instead of 256: buffer_size=100"):
        model = BDPI("MlpPolicy", env, buffer_size=100, **few).learn(120)
    assert model.batch_size == batch_size
    assert epochs_of(model) > 0
    with pytest.raises(ValueError, match="buffer_size must be at least batch_size"):
        BDPI("MlpPolicy", env, buffer_size=100, batch_size=256, **few)


@pytest.mark.parametrize("name", ["use_sde", "action_noise"])
def test_a_name_that_is_like_no_other_is_not_guessed(name):
    with pytest.raises(TypeError, match=f"no argument '{name}': its constructor takes"):
        make(**{name: None})


@pytest.mark.parametrize("agent_class", AGENTS)
@pytest.mark.parametrize("name", ["n_critics", "prior_scale", "is_table"])
def test_what_an_agent_says_itself_is_no_argument_of_its_policy(agent_class, name):
    hint = "give n_critics to the agent itself" if name == "n_critics" else ""
    with pytest.raises(TypeError, match=f"Policy has no argument '{name}': {hint}"):
        make(agent_class, policy_kwargs={name: 3})


def test_load_ignores_what_the_constructor_ignores(tmp_path):
    make().save(tmp_path / "agent")
    with pytest.warns(UserWarning, match="BDPI ignores exploration_initial_eps: no actions are random"):
        BDPI.load(tmp_path / "agent", exploration_initial_eps=0.1)


def test_load_names_the_argument_that_the_file_has_another_size_for(tmp_path):
    make().save(tmp_path / "agent")
    with pytest.raises(ValueError, match="leave n_critics out, which does not fit it"):
        BDPI.load(tmp_path / "agent", n_critics=9)


def test_learning_starts_counts_steps_before_the_first_epoch():
    model = make(learning_starts=30, batch_size=8).learn(40)
    assert epochs_of(model) == 11  # after the 30th step and after each of the 10 that follow
    model.learn(10)  # with the counter set back
    assert epochs_of(model) == 21


def test_what_q_net_is_looked_up_for():
    model = make(ABCDQN).learn(40)
    seen = np.stack([model.observation_space.sample() for _ in range(20)])
    expected, probable = model.agent_learner.q_values(seen), model.policy.probabilities(seen)
    assert expected.shape == (model.n_critics, 20, 2)
    votes = np.eye(2)[expected.argmax(axis=2)].mean(axis=0)
    np.testing.assert_allclose(probable, votes, atol=1e-6)


# -- several steps


def clock(length: int = 5, truncate: bool = False) -> Walk:
    """Observes the number of the step, and pays it; the actions mean nothing."""
    seen = {"seen": lambda env, _: np.array([env.time], np.float32), "pays": lambda env, _: float(env.time)}
    return Walk(spaces.Box(0, 100, (1,), np.float32), length, truncate, **seen)


@pytest.mark.parametrize("truncate", [False, True])
@pytest.mark.parametrize("n_envs", [1, 2])
@pytest.mark.parametrize("steps", [14, 60])  # the second goes round the ring
def test_n_steps_add_up_rewards_to_the_end_of_the_episode(truncate, n_envs, steps):
    env = DummyVecEnv([lambda: clock(truncate=truncate)] * n_envs)
    model = make(env=env, n_steps=3, gamma=0.5, buffer_size=22, batch_size=16).learn(steps)
    memory = model.replay_buffer
    taken, batches = memory.batches(np.random.default_rng(0), (2, 300), 0.25)
    assert batches.shape == (2, 300)
    newest = memory.next_observations[memory.pos - 1, 0, 0]
    for index in np.unique(batches):
        first = taken.observations[index, 0]
        ways = [min(3, 5 - first)]
        if first < newest:  # or as far as there is anything yet
            ways.append(min(3, newest - first))
        rewards = [sum(0.5**k * (first + 1 + k) for k in range(int(m))) for m in ways]
        assert any(np.isclose(taken.rewards[index], reward) for reward in rewards)
        m = ways[int(np.argmax(np.isclose(rewards, taken.rewards[index])))]
        assert taken.next_observations[index, 0] == first + m
        ends = first + m == 5 and not truncate
        assert taken.discounts[index] == (0 if ends else 0.5**m)


def test_n_steps_do_not_cross_an_episode_that_was_given_up():
    model = make(env=clock(length=50), n_steps=4, batch_size=8)
    model.learn(13)
    model.learn(13)  # begins a new episode without the end of the other
    taken, _ = model.replay_buffer.batches(np.random.default_rng(0), (1, 400), 0.25)
    assert (taken.next_observations >= taken.observations).all()
    assert (taken.next_observations - taken.observations).max() == 4


@pytest.mark.parametrize("agent_class", [BDPI, ABCDQN, TabularBDPI])
def test_n_steps_learn_on_every_learner_and_after_loading(agent_class, tmp_path):
    env = "FrozenLake-v1" if agent_class is TabularBDPI else None
    for learner in ("auto",) if agent_class is TabularBDPI else ("native", "torch"):
        one, several = (make(agent_class, env, n_steps=n, learner=learner).learn(40) for n in (1, 3))
        assert several.learner_name == ("tabular" if env else learner)
        assert env or fingerprint(one) != fingerprint(several)
        several.save(tmp_path / "model", include_buffer=True)
        loaded = agent_class.load(tmp_path / "model", env=env or Walk())
        assert loaded.n_steps == 3
        np.testing.assert_array_equal(loaded.replay_buffer.begins[:40], several.replay_buffer.begins[:40])
        for each in (several, loaded):
            each.learn_once()
        assert fingerprint(several) == fingerprint(loaded)


def test_native_and_torch_learn_the_same_from_several_steps():
    first, second = (
        make(n_steps=3, learner=learner).learn(40).agent_learner.state_dict() for learner in ("native", "torch")
    )
    for name, tensor in first.items():
        np.testing.assert_allclose(tensor, second[name], atol=2e-4, err_msg=name)


# -- replay memories


def test_memories_of_sb3_are_understood():
    assert make(replay_buffer_class=ReplayBuffer).learn(20).n_steps == 1
    kwargs = {"n_steps": 3, "gamma": 0.99}
    assert make(replay_buffer_class=NStepReplayBuffer, replay_buffer_kwargs=kwargs).learn(20).n_steps == 3
    with pytest.raises(ValueError, match=r"gamma=0\.5.*gamma=0\.99"):
        make(replay_buffer_class=NStepReplayBuffer, replay_buffer_kwargs={**kwargs, "gamma": 0.5})

    class Counting(TransitionBuffer):
        def __init__(self, *args: Any, start: int = 0, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.count = start

        def add(self, *args: Any, **kwargs: Any) -> None:
            self.count += 1
            super().add(*args, **kwargs)

    model = make(replay_buffer_class=Counting, replay_buffer_kwargs={"start": 100}).learn(20)
    assert model.replay_buffer.count == 120

    class Foreign(ReplayBuffer):
        pass

    with pytest.raises(ValueError, match="derived from TransitionBuffer"):
        make(replay_buffer_class=Foreign)


def test_arguments_of_a_memory_are_not_lost_in_silence():
    with pytest.raises(TypeError, match="did you mean handle_timeout_termination"):
        make(replay_buffer_kwargs={"handle_timeouts_termination": True})
    with pytest.raises(TypeError, match="give optimize_memory_usage to the agent itself"):
        make(replay_buffer_class=ReplayBuffer, replay_buffer_kwargs={"optimize_memory_usage": True})
    with pytest.warns(UserWarning, match="handle_timeout_termination=False is ignored: .*EndAtTimeLimit"):
        make(replay_buffer_kwargs={"handle_timeout_termination": False})


def test_a_memory_is_loaded_where_there_is_none(tmp_path):
    model = make().learn(30)
    model.save_replay_buffer(tmp_path / "memory")
    before = model.replay_buffer.rewards.copy()
    model.replay_buffer = None
    model.load_replay_buffer(tmp_path / "memory")
    np.testing.assert_array_equal(model.replay_buffer.rewards, before)
    model.learn(10, reset_num_timesteps=False)
    assert len(model.replay_buffer) == 40


def flipping(n_bits: int = 4) -> BitFlippingEnv:
    return BitFlippingEnv(n_bits=n_bits, continuous=False, max_steps=n_bits)


HER: dict[str, Any] = {
    "replay_buffer_class": HerReplayBuffer,
    "replay_buffer_kwargs": {"n_sampled_goal": 4, "goal_selection_strategy": "future"},
}


@pytest.mark.parametrize(("strategy", "n_envs"), [("future", 1), ("final", 2), ("episode", 2)])
def test_her_replaces_goals_by_what_was_reached(strategy, n_envs):
    env = DummyVecEnv([flipping] * n_envs)
    kwargs = {"n_sampled_goal": 4, "goal_selection_strategy": strategy}
    model = make(env=env, policy="MultiInputPolicy", **{**HER, "replay_buffer_kwargs": kwargs}, train_freq=20).learn(
        120
    )
    held = model.replay_buffer.transitions()
    taken, batches = model.replay_buffer.batches(np.random.default_rng(0), (2, 100), 0.25, env)
    goals, reached = taken.observations["desired_goal"], taken.next_observations["achieved_goal"]
    np.testing.assert_array_equal(goals, taken.next_observations["desired_goal"])
    pays = np.where((goals == reached).all(axis=1), 0.0, -1.0)
    np.testing.assert_array_equal(taken.rewards, pays)
    own, other = batches[:, :20].reshape(-1), batches[:, 20:].reshape(-1)
    assert (goals[own] == held.observations["desired_goal"][0]).all()  # of this environment, always the same
    assert len(np.unique(goals[other], axis=0)) > 1
    assert (taken.rewards[other] == 0).mean() > 2 * (taken.rewards[own] == 0).mean()
    if strategy != "episode":  # what an action leads to is never reached before it
        assert (goals[other] == reached[other]).all(axis=1).any()


def test_a_goal_that_hindsight_replaces_may_always_be_the_same():
    model = make(env=flipping(), policy="MultiInputPolicy", **HER)
    model.learn(1100)
    assert len(np.unique(model.replay_buffer.transitions().observations["desired_goal"][:1100], axis=0)) == 1
    assert not [finding for finding in model.health() if finding.code == "observations-constant"]


def test_her_learns_is_saved_and_says_what_it_lacks(tmp_path):
    model = make(env=flipping(), policy="MultiInputPolicy", **HER).learn(30)
    model.save(tmp_path / "model", include_buffer=True)
    loaded = BDPI.load(tmp_path / "model", env=flipping())
    assert loaded.hindsight == model.hindsight
    for each in (model, loaded):
        each.learn_once()
    assert fingerprint(model) == fingerprint(loaded)
    with pytest.raises(ValueError, match="needs an environment"):
        BDPI.load(tmp_path / "model").learn_once()
    with pytest.raises(ValueError, match="desired_goal"):
        make(**HER)
    with pytest.raises(ValueError, match="copy_info_dict"):
        make(env=flipping(), policy="MultiInputPolicy", **{**HER, "replay_buffer_kwargs": {"copy_info_dict": True}})


class Line(gym.Env):
    """To one end of a line, always the same: what the goal could be otherwise is seen in hindsight only."""

    box = spaces.Box(-100, 100, (1,), np.float32)
    observation_space = spaces.Dict({"observation": box, "achieved_goal": box, "desired_goal": box})
    action_space = spaces.Discrete(2)

    def _seen(self) -> Any:
        here, there = np.array([self.place], np.float32), np.array([9.0], np.float32)
        return {"observation": here, "achieved_goal": here, "desired_goal": there}

    def reset(self, **kwargs: Any) -> Any:
        self.place = self.time = 0
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self.place, self.time = self.place + (1 if action else -1), self.time + 1
        seen = self._seen()
        reward = self.compute_reward(seen["achieved_goal"], seen["desired_goal"], {})
        return seen, float(reward), False, self.time == 12, {}

    def compute_reward(self, achieved: np.ndarray, desired: np.ndarray, info: Any) -> np.ndarray:
        return (achieved == desired).all(axis=-1).astype(np.float32)


def test_networks_see_goals_that_were_never_meant():
    model = make(env=Line(), policy="MultiInputPolicy", **HER).learn(40)
    scales = dict(zip(Line.observation_space, model.policy.scales.factor, strict=True))
    assert scales["desired_goal"] > 0
    lines = {key: np.array([[3.0], [3.0]], np.float32) for key in Line.observation_space}
    lines["desired_goal"] = np.array([[-2.0], [5.0]], np.float32)
    assert not np.allclose(*model.agent_learner.q_values(lines).swapaxes(0, 1))


@pytest.mark.full
def test_with_hindsight_bits_are_flipped_as_asked():
    """Six bits, of which 64 states are hard to find by chance."""
    settings = {"n_critics": 4, "batch_size": 128, "learning_rate": 1e-3, "seed": 0}
    model = BDPI("MultiInputPolicy", flipping(6), **settings, **HER).learn(1500)
    assert evaluate_policy(model, flipping(6), 5)[0] > -6


@pytest.mark.parametrize(("n_steps", "truncate"), [(1, True), (3, False)])
def test_pictures_that_are_stored_once_teach_the_same(n_steps, truncate, tmp_path):
    def picture(**changes: Any) -> Any:
        env = Walk(spaces.Box(0, 255, (36, 36, 1), np.uint8), length=7, truncate=truncate)
        usual = {"train_freq": 10, "fit_steps": 1, "n_critics": 2, "n_steps": n_steps, "buffer_size": 24}
        return make(env=env, policy="CnnPolicy", **{**usual, **changes})

    twice, once = (picture(optimize_memory_usage=each).learn(40) for each in (False, True))  # round the ring
    assert fingerprint(twice) == fingerprint(once)
    held = [each.replay_buffer.transitions().next_observations[np.arange(24)] for each in (twice, once)]
    np.testing.assert_array_equal(*held)
    assert once.replay_buffer.next_observations.n_apart <= 24 / 6 + 1
    once.save(tmp_path / "model", include_buffer=True)
    loaded = BDPI.load(tmp_path / "model")
    assert loaded.replay_buffer.next_observations.n_apart == once.replay_buffer.next_observations.n_apart
    for each in (twice, loaded):
        each.learn_once()
    assert fingerprint(twice) == fingerprint(loaded)


# -- gradients and optimisers


def test_long_gradients_are_shortened_to_max_grad_norm():
    with pytest.warns(RuntimeWarning, match="max_grad_norm"):
        model = make(max_grad_norm=1e-9)
    assert model.learner_name == "torch"
    usual = make(learner="torch")
    start = usual.agent_learner.state_dict()["critics.parameters"]
    moved, short = (each.learn(18).agent_learner.state_dict()["critics.first_moment"].norm() for each in (usual, model))
    assert short < 1e-3 * moved
    assert not np.array_equal(start, model.agent_learner.state_dict()["critics.parameters"])
    long = make(max_grad_norm=1e9, learner="torch").learn(18)
    assert fingerprint(long) == fingerprint(usual)  # which are shorter
    with pytest.raises(ValueError, match="max_grad_norm"):
        make(max_grad_norm=1.0, learner="native")


def test_optimizer_kwargs_are_adams(tmp_path):
    def adam(**kwargs: Any) -> Any:
        policy_kwargs = {"optimizer_class": torch.optim.Adam, "optimizer_kwargs": kwargs}
        return make(policy_kwargs={**policy_kwargs, "share_features_extractor": False}, learner="torch")

    usual = fingerprint(make(learner="torch").learn(18))
    assert fingerprint(adam(eps=1e-8, betas=(0.9, 0.999), weight_decay=0).learn(18)) == usual
    for kwargs in ({"eps": 1e-2}, {"betas": [0.5, 0.9]}, {"weight_decay": 0.1}):
        assert fingerprint(adam(**kwargs).learn(18)) != usual
    adam(eps=1e-2).learn(18).save(tmp_path / "model")
    assert BDPI.load(tmp_path / "model").policy.optimizer_kwargs == {"eps": 1e-2}
    with pytest.raises(ValueError, match="amsgrad"):
        adam(amsgrad=True)
    with pytest.raises(ValueError, match=r"torch\.optim\.Adam"):
        make(policy_kwargs={"optimizer_class": torch.optim.RMSprop})
    with pytest.raises(ValueError, match="its own features"):
        make(policy_kwargs={"share_features_extractor": True})
    assert make(policy_kwargs={"optimizer_kwargs": {"eps": 1e-8}}).learner_name == "native"


# -- loading


def test_names_are_those_that_sb3_finds(tmp_path):
    for name in ("pole", "pole-0.5.zip"):
        make().save(tmp_path / name)
    (tmp_path / "pole").mkdir()  # of a log
    for name in ("pole", "pole.zip", "pole-0.5", "pole-0.5.zip"):
        assert BDPI.load(tmp_path / name).n_critics == QUICK["n_critics"]
    with pytest.raises(FileNotFoundError, match=r"no saved agent .*pole-0"):
        BDPI.load(tmp_path / "pole-0")


@pytest.mark.parametrize("agent_class", AGENTS)
def test_loading_to_watch_as_rl_zoo_does(agent_class, tmp_path):
    make(agent_class).learn(30).save(tmp_path / "model")
    custom = {"learning_rate": 0.0, "lr_schedule": lambda _: 0.0, "clip_range": lambda _: 0.0}
    model = agent_class.load(tmp_path / "model", env=None, custom_objects=custom, seed=0, buffer_size=1)
    model.predict(model.observation_space.sample(), deterministic=True)
    with pytest.raises(ValueError, match="buffer_size must be at least batch_size"):
        agent_class.load(tmp_path / "model", env=Walk(), buffer_size=1).learn(10)
    with pytest.raises(ValueError, match="learning_rate"):
        make(agent_class, learning_rate=0.0)


def test_a_subclass_loads_its_parents_file(tmp_path):
    class Careful(BDPI):
        def __init__(self, *args: Any, patience: int = 3, **kwargs: Any) -> None:
            self.patience = patience
            super().__init__(*args, **kwargs)

    model = make().learn(30)
    model.save(tmp_path / "model")
    loaded = Careful.load(tmp_path / "model", env=Walk())
    assert (type(loaded), loaded.patience, loaded.agent_class) == (Careful, 3, "Careful")
    assert fingerprint(loaded) == fingerprint(model)
    loaded.learn(10).save(tmp_path / "careful")
    assert Careful.load(tmp_path / "careful").patience == 3
    with pytest.raises(ValueError, match="holds an agent of class Careful"):
        BDPI.load(tmp_path / "careful")


# -- environments and callbacks


def test_a_vec_env_without_reset_infos():
    class Bare(DummyVecEnv):
        """As of a library that steps environments by itself."""

        def step_wait(self) -> Any:
            return self.without(super().step_wait)

        def reset(self) -> Any:
            return self.without(super().reset)

        def without(self, call: Any) -> Any:
            self.reset_infos: list[Any] = [{}]
            try:
                return call()
            finally:
                del self.reset_infos

    env = Bare([Walk])
    env.reset()
    assert not hasattr(env, "reset_infos")
    model = make(env=env).learn(30)
    assert len(evaluate_policy(model, env, 2, return_episode_rewards=True)[0]) == 2


@pytest.mark.parametrize("n_envs", [1, 2])
def test_callbacks_see_the_names_of_sb3(n_envs):
    class Look(BaseCallback):
        seen: list[tuple[int, int]] = []  # noqa: RUF012

        def _on_step(self) -> bool:
            names = {"env", "actions", "new_obs", "rewards", "dones", "infos", "replay_buffer", "train_freq"}
            assert names <= self.locals.keys()
            self.seen.append((self.locals["num_collected_steps"], self.locals["num_collected_episodes"]))
            return True

    look = Look()
    look.seen = []
    make(env=DummyVecEnv([Walk] * n_envs), train_freq=4).learn(16 * n_envs, callback=look)
    assert [steps for steps, _ in look.seen] == [1, 2, 3, 4] * 4
    assert max(episodes for _, episodes in look.seen) == n_envs


def test_nothing_is_said_of_what_is_usual():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(buffer_size=200, learning_starts=20, train_freq=(4, "step"), gradient_steps=-1, n_steps=2).learn(40)
