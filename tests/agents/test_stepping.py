"""Agents that are called step by step, and agents that learn in the background."""

import gc
import signal
import subprocess
import sys
import threading
import time
import weakref
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from torch import nn

from bdpi import ABCDQN, BDPI, ActorMimic, BootstrappedDQN
from bdpi.agents import Ensemble, TabularBDPI
from bdpi.envs import ControlLoop
from small import epochs_of

SMALL: dict[str, Any] = {"n_critics": 3, "batch_size": 16, "critic_iterations": 2, "fit_steps": 3}
SMALL |= {"policy_kwargs": {"net_arch": [16]}}
BOX = spaces.Box(-np.inf, np.inf, (4,), np.float32)


def loop(env_id: str = "CartPole-v1") -> ControlLoop:
    env = gym.make(env_id)
    return ControlLoop(env.observation_space, env.action_space)


def quick(agent_class: type[Ensemble] = BDPI, env: Any = None, **arguments: Any) -> Any:
    return agent_class("MlpPolicy", env or loop(), **{"seed": 0, **SMALL, **arguments})


def drive(agent: Ensemble, steps: int, seed: int = 0, learns: bool = True, env_id: str = "CartPole-v1") -> None:
    """A control loop outside of the agent."""
    env = gym.make(env_id)
    observation, _ = env.reset(seed=seed)
    for _ in range(steps):
        action = agent.act(observation)
        next_observation, reward, terminated, truncated, _ = env.step(action)
        agent.observe(observation, action, reward, next_observation, terminated, truncated)
        if learns:
            agent.learn_once()
        observation = next_observation
        if terminated or truncated:
            observation, _ = env.reset()


def state_of(agent: Ensemble) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in agent.agent_learner.learner.state_dict().items()}


@pytest.mark.parametrize("agent_class", [BDPI, ActorMimic, ABCDQN, TabularBDPI])
def test_step_by_step_as_by_itself(agent_class):
    env_id = "FrozenLake-v1" if agent_class is TabularBDPI else "CartPole-v1"
    small = {} if agent_class is TabularBDPI else SMALL
    by_itself, step_by_step = (agent_class("MlpPolicy", env, seed=3, **small) for env in (env_id, loop(env_id)))
    by_itself.learn(320 if agent_class is TabularBDPI else 120)
    drive(step_by_step, by_itself.num_timesteps, seed=3, env_id=env_id)
    assert state_of(step_by_step) == state_of(by_itself)
    assert step_by_step.num_timesteps == by_itself.num_timesteps
    assert step_by_step._episode_num == by_itself._episode_num


def test_both_ways_mixed(tmp_path):
    agent = quick(env="CartPole-v1").learn(40)
    drive(agent, 40, seed=1)
    agent.learn(40, reset_num_timesteps=False)
    assert agent.num_timesteps == len(agent.replay_buffer) == 120
    agent.save(tmp_path / "agent")
    loaded = BDPI.load(tmp_path / "agent", env=loop())
    assert state_of(loaded) == state_of(agent)
    assert loaded.act(np.zeros(4, np.float32)) in (0, 1)


@pytest.mark.parametrize("where", ["at the end of an episode", "in the middle of one", "before the first"])
@pytest.mark.parametrize("agent_class", [BDPI, ActorMimic, ABCDQN, BootstrappedDQN, TabularBDPI])
def test_a_loaded_agent_goes_on_exactly(agent_class, where, tmp_path):
    """Same actions, same networks: also which critic an episode follows is in the file."""
    is_table = agent_class is TabularBDPI
    space = spaces.Discrete(6) if is_table else spaces.Box(-1, 1, (2,), np.float32)
    system = ControlLoop(space, spaces.Discrete(3))
    small = {key: value for key, value in SMALL.items() if not is_table or key not in ("fit_steps", "policy_kwargs")}
    saved = agent_class("MlpPolicy", system, seed=0, **{**small, "n_critics": 8, "buffer_size": 30})
    space.seed(0)

    def step(agents: list[Ensemble], number: int) -> list[int]:
        seen, following = space.sample(), space.sample()
        actions = [agent.act(seen) for agent in agents]
        for agent, action in zip(agents, actions, strict=True):
            agent.observe(seen, action, float(action), following, number % 10 == 9, number % 10 == 4)
            agent.learn_once()
        return actions

    done = {"at the end of an episode": 40, "in the middle of one": 47, "before the first": 0}[where]
    for number in range(done):
        step([saved], number)
    saved.save(tmp_path / "agent", include_buffer=True)
    loaded = agent_class.load(tmp_path / "agent", env=system)
    for number in range(done, done + 40):
        first, second = step([saved, loaded], number)
        assert first == second
    assert state_of(loaded) == state_of(saved)
    assert (loaded.num_timesteps, loaded._episode_num) == (saved.num_timesteps, saved._episode_num)


def test_an_agent_changes_from_one_system_to_several_and_back(tmp_path):
    agent = quick(ABCDQN)
    drive(agent, 20)
    agent.save(tmp_path / "agent")
    agent = ABCDQN.load(tmp_path / "agent", env=DummyVecEnv([lambda: gym.make("CartPole-v1")] * 3))
    agent.learn(30, reset_num_timesteps=False).save(tmp_path / "agent")
    agent = ABCDQN.load(tmp_path / "agent", env=loop())
    assert agent.act(np.zeros(4, np.float32)) in (0, 1)
    assert len(agent.actions.followed) == 1


@pytest.mark.parametrize("agent_class", [BDPI, ABCDQN])
def test_a_journal_in_the_place_of_a_saved_memory_is_exact(agent_class, tmp_path):
    """As long as the memory is not full: then its transitions are in another order."""
    agents = [quick(agent_class, journal=tmp_path / "robot.sqlite")]
    drive(agents[0], 47)
    agents[0].save(tmp_path / "agent")
    agents[0].close_journal()
    agents[0].collector.journal = None
    agents.append(agent_class.load(tmp_path / "agent", env=loop(), journal=tmp_path / "robot.sqlite"))
    for agent in agents:
        drive(agent, 40, seed=1)
    assert state_of(agents[0]) == state_of(agents[1])


def test_what_was_really_done_is_remembered():
    agent = quick(env=ControlLoop(BOX, spaces.Discrete(3, start=5)), gamma=0.9)
    seen = np.zeros(4, np.float32)
    assert agent.act(seen) in (5, 6, 7)
    agent.observe(seen, 6, 1.5, seen + 1, False, False)
    agent.observe(seen, 7, 0.0, seen, True, False)
    agent.observe(seen, 7, 0.0, seen, False, True)
    agent.observe(seen, 5, 0.0, seen, False, False, discount=0.25)
    held = agent.replay_buffer.transitions()
    assert held.actions.tolist() == [1, 2, 2, 0]
    assert held.rewards.tolist() == [1.5, 0, 0, 0]
    assert held.discounts.tolist() == pytest.approx([0.9, 0, 0.9, 0.25])
    assert held.next_observations[0].tolist() == [1, 1, 1, 1]


def test_masks():
    agent = quick(env=ControlLoop(BOX, spaces.Discrete(3)))
    seen = np.zeros(4, np.float32)
    assert {agent.act(seen, mask=[0, 0, 1]) for _ in range(20)} == {2}
    with pytest.raises(ValueError, match="give observe next_mask"):
        agent.observe(seen, 2, 0, seen, False, False)
    agent.observe(seen, 2, 0, seen, False, False, next_mask=[1, 0, 1])
    agent.act(seen, mask=[1, 0, 1])
    agent.observe(seen, 0, 0, seen, True, False)
    held = agent.replay_buffer.transitions()
    assert held.masks.tolist() == [[False, False, True], [True, False, True]]
    assert held.next_masks.tolist() == [[True, False, True], [True, True, True]]
    with pytest.raises(ValueError, match="allow no action"):
        agent.act(seen, mask=[0, 0, 0])


SEEN = np.zeros(4, np.float32)
GOOD: dict[str, Any] = {"observation": SEEN, "executed_action": 0, "reward": 0.0, "next_observation": SEEN}
GOOD |= {"terminated": False, "truncated": False}


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"reward": np.nan}, "reward.*not finite"),
        ({"reward": 1e300}, "reward.*not finite"),
        ({"reward": "much"}, "reward must be a number"),
        ({"next_observation": np.array([0, np.inf, 0, 0])}, "next observation.*not finite"),
        ({"observation": np.zeros(3)}, "shape"),
        ({"observation": "left"}, "shape"),
        ({"observation": np.full(4, 1e300)}, "float32, the type of its space, cannot"),
        ({"executed_action": 3}, "executed_action is 3"),
        ({"executed_action": 0.5}, "executed_action must be"),
        ({"discount": 2}, "discount must be"),
        ({"next_mask": [1, 1]}, "zeros and ones"),
        *(({"terminated": odd}, "terminated must be True or False") for odd in ("no", None, 2, [False])),
        *(({"truncated": odd}, "truncated must be True or False") for odd in ("no", None, 2, [False])),
    ],
)
def test_nonsense_is_refused_and_nothing_is_lost(bad, message):
    agent = quick(env=ControlLoop(BOX, spaces.Discrete(3)))
    truths = (True, np.True_, 1, np.int64(1), np.array(True))
    for truth in truths:
        agent.observe(**{**GOOD, "terminated": truth})
    with pytest.raises(ValueError, match=message):
        agent.observe(**{**GOOD, **bad})
    assert agent.replay_buffer.transitions().discounts.tolist() == [0] * agent.num_timesteps == [0] * len(truths)


def test_a_control_loop_has_no_steps():
    agent = quick(env=ControlLoop(BOX, spaces.Discrete(3)))
    with pytest.raises(RuntimeError, match="learn_once"):
        agent.learn(10)
    several = BDPI("MlpPolicy", DummyVecEnv([lambda: gym.make("CartPole-v1")] * 2), **SMALL)
    with pytest.raises(ValueError, match="one system at a time"):
        several.act(np.zeros(4, np.float32))
    with pytest.raises(ValueError, match="train_freq"):
        quick(env="CartPole-v1", train_freq=(1, "episode")).start_learning()
    with pytest.raises(ValueError, match="ABCDQN"):
        quick(ABCDQN).start_learning()


def test_dict_observations():
    space = spaces.Dict({"arm": spaces.Box(-1, 1, (2,)), "mode": spaces.Discrete(3)})
    agent = BDPI("MultiInputPolicy", ControlLoop(space, spaces.Discrete(2)), seed=0, n_critics=2, batch_size=4)
    for number in range(6):
        seen = {"arm": np.full(2, number / 10, np.float32), "mode": number % 3}
        agent.observe(seen, agent.act(seen), 1, seen, False, False)
    assert agent.learn_once()
    with pytest.raises(ValueError, match="keys arm, mode"):
        agent.act({"arm": np.zeros(2)})
    whole = BDPI("MlpPolicy", ControlLoop(spaces.Box(0, 255, (2,), np.uint8), spaces.Discrete(2)), **SMALL)
    assert whole.act(np.array([255.0, 0.0])) in (0, 1)
    for bad in ([300.0, 0.0], [0.7, 0.0]):  # numbers that would become others
        with pytest.raises(ValueError, match="uint8"):
            whole.act(np.array(bad))


PICTURE = spaces.Box(0, 255, (36, 40, 3), np.uint8)


@pytest.mark.parametrize("space", [PICTURE, spaces.Dict({"eye": PICTURE, "arm": spaces.Box(-1, 1, (2,))})])
def test_pictures_as_the_camera_gives_them(space):
    """Networks want channels first; act and observe take a picture as it is, as predict does, or turned already."""

    def turned(seen: Any) -> Any:
        if isinstance(seen, dict):
            return {**seen, "eye": seen["eye"].transpose(2, 0, 1)}
        return seen.transpose(2, 0, 1)

    def eye(seen: Any) -> Any:
        return seen["eye"] if isinstance(seen, dict) else seen

    policy = "CnnPolicy" if space is PICTURE else "MultiInputPolicy"
    small = {"n_critics": 2, "batch_size": 4, "critic_iterations": 1, "buffer_size": 10}
    agent = BDPI(policy, ControlLoop(space, spaces.Discrete(2)), seed=0, **small)
    space.seed(0)
    seen, following = space.sample(), space.sample()
    assert agent.predict(seen)[0] in (0, 1)
    answers = []
    for way in (lambda picture: picture, turned):
        assert agent.act(way(seen)) in (0, 1)
        answers.append(agent.actions.drawn_by)
        agent.observe(way(seen), 1, 0.5, way(following), terminated=False, truncated=False)
    np.testing.assert_array_equal(*answers)
    held = agent.replay_buffer.transitions()
    for number in range(2):
        np.testing.assert_array_equal(eye(held.observations)[number], eye(turned(seen)))
        np.testing.assert_array_equal(eye(held.next_observations)[number], eye(turned(following)))
    agent.add_demonstrations([(seen, 0, 0.0, following, False, False)] * 4)
    assert agent.learn_once()
    small_picture = {**seen, "eye": seen["eye"][1:]} if isinstance(seen, dict) else seen[1:]
    with pytest.raises(ValueError, match="shape"):
        agent.act(small_picture)


def test_normalization_follows_what_is_observed():
    def make() -> VecNormalize:
        return VecNormalize(DummyVecEnv([lambda: Monitor(gym.make("CartPole-v1"))]))

    agent = BDPI("MlpPolicy", make(), seed=0, **SMALL)
    drive(agent, 50)
    statistics = agent.get_vec_normalize_env().obs_rms
    assert statistics.count == pytest.approx(50, abs=0.1)
    stored = agent.replay_buffer.transitions().next_observations
    np.testing.assert_allclose(statistics.mean, stored.mean(axis=0), atol=1e-3)


# -- in the background --------------------------------------------------------------------------------------------


def test_learning_while_acting():
    agent = quick()
    seen = np.zeros(4, np.float32)
    before = agent.policy.probabilities(seen[None])
    agent.start_learning()
    with pytest.raises(RuntimeError, match="background"):
        agent.start_learning()
    with pytest.raises(RuntimeError, match="background"):
        agent.learn_once()
    drive(agent, 100, learns=False)
    deadline = time.monotonic() + 60
    while epochs_of(agent) < 60 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert epochs_of(agent) >= 60
    agent.stop_learning()
    # never more epochs than learn() would have made, and none after stop_learning
    made = epochs_of(agent)
    assert 60 <= made <= 85  # learning starts at a batch of 16
    assert made + agent.epochs_due == 85
    time.sleep(0.1)
    assert epochs_of(agent) == made
    assert len(agent.replay_buffer) == 100
    assert not np.array_equal(agent.policy.probabilities(seen[None]), before)
    found, expected = agent.policy.probabilities(seen[None]), agent.agent_learner.behaviour(seen[None])
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert agent.learn_once()
    agent.stop_learning()  # nothing to stop
    by_itself = quick(env="CartPole-v1", asynchronous=True).learn(200)
    assert by_itself.num_timesteps == len(by_itself.replay_buffer) == 200
    assert (epochs_of(by_itself), by_itself.epochs_due) == (185, 0)
    assert not by_itself._background.is_running
    assert threading.active_count() < 20
    by_itself.learn(50, reset_num_timesteps=False)
    assert len(by_itself.replay_buffer) == 250


class Slow(BDPI):
    """Cannot keep up with a robot, unless it has time."""

    has_time = threading.Event()

    def _learn_once(self) -> bool:
        learned = super()._learn_once()
        self.has_time.wait(0.5)
        return learned


def interrupt(*arguments: Any) -> None:
    raise KeyboardInterrupt


def test_epochs_that_a_robot_leaves_no_time_for_are_made_later(tmp_path, monkeypatch):
    agent = quick(Slow)
    assert agent.epochs_due == 0
    agent.start_learning()
    drive(agent, 60, learns=False)
    assert agent.epochs_due > 20
    agent.save(tmp_path / "agent", include_buffer=True)
    agent.stop_learning()
    left = agent.epochs_due
    assert left > 20
    assert epochs_of(agent) + left == 45  # as many as learn() makes of 60 steps, which begins at a batch of 16
    agent.has_time.set()
    agent.save(tmp_path / "without memory")
    assert agent.learn_once()
    assert agent.epochs_due == left - 1
    for each in (agent, Slow.load(tmp_path / "agent", env=loop())):  # both go on with them
        assert epochs_of(each) + each.epochs_due == 45
        each.start_learning()
        each.stop_learning(finish=True)
        assert (each.epochs_due, epochs_of(each)) == (0, 45)
    loaded = Slow.load(tmp_path / "without memory", env=loop())
    loaded.start_learning()
    loaded.stop_learning(finish=True)
    assert loaded.epochs_due == left  # they wait for experience
    loaded.start_learning()
    drive(loaded, 16, learns=False)
    loaded.stop_learning(finish=True)
    assert epochs_of(loaded) == 46
    agent.has_time.clear()
    impatient = quick(Slow)
    impatient.start_learning()
    drive(impatient, 60, learns=False)
    with monkeypatch.context() as patch:  # interrupted while the rest is learned, it can be stopped
        patch.setattr(impatient._background, "wait_until_due", interrupt)
        with pytest.raises(KeyboardInterrupt):
            impatient.stop_learning(finish=True)
    impatient.stop_learning()
    assert epochs_of(impatient) + impatient.epochs_due == 45
    quarters = quick(train_freq=4)
    quarters.start_learning()
    drive(quarters, 22, learns=False)
    quarters.stop_learning(finish=True)
    assert epochs_of(quarters) == 1  # of seven quarters: parts of epochs are not waited for
    quarters.start_learning()
    quarters.observe(**GOOD)
    quarters.stop_learning(finish=True)
    assert epochs_of(quarters) == 2


@pytest.mark.skipif(sys.platform == "win32", reason="there are no timers that interrupt")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # interrupted where nobody can be told
def test_whoever_is_interrupted_while_learning_starts_can_start_again():
    agent = quick()
    drive(agent, 20, learns=False)
    usual, before, interrupted = sys.getswitchinterval(), signal.getsignal(signal.SIGALRM), 0
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for attempt in range(100):
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-5 + attempt % 20 * 2e-3)
                agent.start_learning()
                signal.setitimer(signal.ITIMER_REAL, 0)
                agent.stop_learning()
            except KeyboardInterrupt:
                interrupted += 1
                agent.stop_learning()  # perhaps it had just started
                assert sys.getswitchinterval() == usual
                assert gc.get_freeze_count() == 0
            if interrupted == 10:
                break
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interrupted > 0
    made = epochs_of(agent)
    agent.start_learning()
    drive(agent, 5, seed=1, learns=False)
    agent.stop_learning(finish=True)
    assert epochs_of(agent) == made + 5


@pytest.mark.parametrize("activation", [nn.Tanh, nn.ReLU])
@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-1, 1, (3,)),
        spaces.Discrete(5, start=2),
        spaces.MultiDiscrete([2, 3]),
        spaces.Box(0, 255, (2, 2), np.uint8),
    ],
)
def test_acting_without_pytorch_is_acting_the_same(space, activation):
    kwargs = {"net_arch": {"pi": [8, 6], "qf": [4]}, "activation_fn": activation}
    agent = BDPI("MlpPolicy", ControlLoop(space, spaces.Discrete(3)), **{**SMALL, "policy_kwargs": kwargs})
    space.seed(0)
    seen = np.array([space.sample() for _ in range(20)])

    def check() -> None:
        np.testing.assert_allclose(agent.agent_learner.probabilities(seen), agent.policy.probabilities(seen), atol=1e-6)

    check()
    agent.start_learning()
    check()
    assert agent.act(seen[0]) in (0, 1, 2)
    answers = set()
    for number, observation in enumerate([*seen, *seen], 1):
        agent.observe(observation, 0, 1.0, observation, False, False)
        agent._background.wait_until_due(0)
        answers.add(agent.policy.probabilities(seen).tobytes())
        assert len(answers) == max(1, number - 14)  # every epoch is published, from the first batch on
    check()
    agent.stop_learning()
    check()
    before = agent.agent_learner.probabilities(seen)
    assert agent.learn_once()
    assert not np.array_equal(agent.agent_learner.probabilities(seen), before)
    check()


def test_a_failure_in_the_background_surfaces(monkeypatch):
    agent = quick()
    drive(agent, 20, learns=False)

    def fail(*arguments: Any) -> None:
        raise ValueError("learning diverged")

    monkeypatch.setattr(agent.agent_learner.learner, "epoch", fail)
    agent.start_learning()
    agent.observe(**GOOD)
    agent._background._thread.join(60)
    for call in (lambda: agent.act(SEEN), lambda: agent.observe(**GOOD), agent.stop_learning):
        with pytest.raises(RuntimeError, match="learning diverged"):
            call()
    assert len(agent.replay_buffer) == 21
    assert agent.act(SEEN) in (0, 1)


def test_saving_while_learning_and_not_what_has_diverged(tmp_path):
    agent = quick(env="CartPole-v1")
    agent.start_learning()
    for number in range(5):
        drive(agent, 30, seed=number, learns=False)
        agent.save(tmp_path / "agent")
        with agent.learning_paused():
            held = len(agent.replay_buffer)
            loaded = BDPI.load(tmp_path / "agent")
        assert loaded.num_timesteps == held == 30 * (number + 1)
        # actor and learner of the file belong together
        seen = np.zeros((1, 4), np.float32)
        found, expected = loaded.policy.probabilities(seen), loaded.agent_learner.behaviour(seen)
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    agent.stop_learning()
    agent.agent_learner.learner.state.critics.parameters[:] = np.nan
    with pytest.raises(ValueError, match="diverged"):
        agent.save(tmp_path / "agent")
    assert BDPI.load(tmp_path / "agent").num_timesteps == 150  # the good one is still there


class Watched(BDPI):
    """Notices when somebody else changes it during an epoch."""

    disturbed, is_learning = 0, threading.Event()

    def _learn_once(self) -> bool:
        learned, before = super()._learn_once(), self.everything()
        self.is_learning.set()
        time.sleep(0.03)
        self.disturbed += before != self.everything()
        return learned

    def everything(self) -> tuple[Any, ...]:
        return state_of(self), id(self.replay_buffer), id(self.env), id(self._vec_normalize_env), id(self._generator)


def test_nobody_waits_for_the_memory_to_be_saved(tmp_path, monkeypatch):
    """What is observed while it is copied waits in a queue; the file has what came before, and only that."""
    agent = quick()
    drive(agent, 10, learns=False)
    agent.start_learning()
    copy, in_time = agent.replay_buffer.held, []

    def copy_slowly() -> Any:
        robot = threading.Thread(target=lambda: agent.observe(**GOOD))
        robot.start()
        robot.join(60)
        in_time.append(not robot.is_alive())
        return copy()

    monkeypatch.setattr(agent.replay_buffer, "held", copy_slowly)
    agent.save(tmp_path / "agent", include_buffer=True)
    agent.stop_learning()
    assert in_time == [True]
    loaded = BDPI.load(tmp_path / "agent")
    assert len(loaded.replay_buffer) == loaded.num_timesteps == 10
    assert len(agent.replay_buffer) == agent.num_timesteps == 11


@pytest.mark.parametrize("what", ["set_parameters", "load_replay_buffer", "set_env", "set_random_seed"])
def test_whoever_changes_an_agent_waits_for_the_epoch(what, tmp_path):
    agent, other = (Watched("MlpPolicy", loop(), seed=seed, **SMALL) for seed in (0, 1))
    for each in (agent, other):
        drive(each, 20, learns=False)
    other.save_replay_buffer(tmp_path / "memory")
    changes = {
        "set_parameters": lambda: agent.set_parameters(other.get_parameters()),
        "load_replay_buffer": lambda: agent.load_replay_buffer(tmp_path / "memory"),
        "set_env": lambda: agent.set_env(VecNormalize(DummyVecEnv([lambda: loop()]))),
        "set_random_seed": lambda: agent.set_random_seed(7),
    }
    agent.start_learning()
    for _ in range(10):
        agent.is_learning.clear()
        agent.observe(**GOOD)
        assert agent.is_learning.wait(60)
        changes[what]()
    agent.stop_learning()
    assert epochs_of(agent) >= 10
    assert agent.disturbed == 0


def test_parameters_that_are_set_while_learning_act_and_are_learned_from():
    agent, other = (BDPI("MlpPolicy", loop(), seed=seed, **SMALL) for seed in (0, 1))
    seen = np.zeros((1, 4), np.float32)
    wanted = other.policy.probabilities(seen)
    for parameters in (other.get_parameters(), {"policy": other.get_parameters()["policy"]}):
        agent.set_random_seed(0)
        agent.start_learning()
        agent.set_parameters(parameters, exact_match=len(parameters) == 2)
        np.testing.assert_array_equal(agent.policy.probabilities(seen), wanted)
        np.testing.assert_allclose(agent.agent_learner.probabilities(seen), wanted, rtol=1e-5)
        np.testing.assert_allclose(agent.agent_learner.behaviour(seen), wanted, rtol=1e-5)
        agent.stop_learning()
        np.testing.assert_array_equal(agent.policy.probabilities(seen), wanted)
        agent = BDPI("MlpPolicy", loop(), seed=2, **SMALL)


def test_an_agent_that_nobody_has_any_more_is_gone(tmp_path):
    usual = sys.getswitchinterval()
    agent = BDPI("MlpPolicy", loop(), journal=tmp_path / "robot.sqlite", **SMALL)
    agent.start_learning()
    drive(agent, 200, learns=False)
    thread, reference = agent._background._thread, weakref.ref(agent)
    del agent
    thread.join(60)
    assert not thread.is_alive()
    assert reference() is None
    assert sys.getswitchinterval() == usual
    assert gc.get_freeze_count() == 0
    gc.collect()
    assert not (tmp_path / "robot.sqlite-wal").exists()  # the journal is closed, too


def test_autosave_before_there_is_anything_to_learn_from(tmp_path):
    """Fewer transitions than a batch, or none."""

    def make(name: str, env: Any = None, **arguments: Any) -> BDPI:
        return quick(env=env, autosave=tmp_path / name, autosave_minutes=1e-9, **arguments)

    def steps_of(name: str) -> int:
        return BDPI.load(tmp_path / name).num_timesteps

    agent = make("in turn.zip")
    agent.observe(**GOOD)
    assert not agent.learn_once()
    assert steps_of("in turn.zip") == 1
    make("by itself.zip", "CartPole-v1").learn(10)
    assert steps_of("by itself.zip") == 10
    make("without learning.zip", "CartPole-v1", gradient_steps=0).learn(20)
    assert steps_of("without learning.zip") == 20
    agent = make("in the background.zip")
    agent.start_learning()
    deadline = time.monotonic() + 60
    while not (tmp_path / "in the background.zip").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    agent.stop_learning()
    assert steps_of("in the background.zip") == 0
    shown = make("shown.zip", journal=tmp_path / "robot.sqlite")  # demonstrations are saved, too
    shown.add_demonstrations([(SEEN, 0, 0.0, SEEN, False, False)] * 20)
    drive(shown, 30)
    shown.close_journal()
    loaded = BDPI.load(tmp_path / "shown.zip", env=loop(), journal=tmp_path / "robot.sqlite")
    assert loaded.replay_buffer.n_demonstrations == 20
    assert len(loaded.replay_buffer) == loaded.num_timesteps == 30


def test_a_failed_autosave_does_not_stop_a_robot(tmp_path):
    (tmp_path / "file").write_text("in the way")
    path = tmp_path / "file" / "agent.zip"
    agent = BDPI("MlpPolicy", loop(), autosave=path, autosave_minutes=1e-9, **SMALL)
    drive(agent, 16, learns=False)
    with pytest.warns(RuntimeWarning, match="autosave to"):
        assert agent.learn_once()
    with pytest.raises(ValueError, match="autosave"):
        BDPI("MlpPolicy", loop(), autosave=True, **SMALL)


@pytest.mark.parametrize("how", ["end", "interrupt"])
def test_a_program_that_forgets_to_stop_ends_well(how):
    code = """
import sys, numpy as np
from gymnasium import spaces
from bdpi import BDPI
from bdpi.envs import ControlLoop
agent = BDPI("MlpPolicy", ControlLoop(spaces.Box(0, 1, (2,)), spaces.Discrete(2)), batch_size=32)
agent.start_learning()
for _ in range(200):
    agent.observe(np.zeros(2, np.float32), 0, 0.0, np.zeros(2, np.float32), False, False)
if sys.argv[1] == "interrupt":
    raise KeyboardInterrupt
"""
    done = subprocess.run([sys.executable, "-c", code, how], capture_output=True, text=True, timeout=120)
    assert "terminate called" not in done.stderr
    assert done.returncode == (0 if how == "end" else -2 if done.returncode < 0 else 130), done.stderr
