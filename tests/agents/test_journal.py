"""The experience journal: nothing that was observed is lost."""

import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from journals import ACTIONS, SPACES, all_spaces, change, only_readable, public_folder, read, same, transitions
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from bdpi import BDPI
from bdpi.agents.journal import Journal, JournalError, Transition
from bdpi.agents.journal_info import examine
from bdpi.agents.normalizing import describe_normalizer
from bdpi.envs import ControlLoop
from bdpi.envs.descriptions import describe, difference, space_of

SMALL: dict[str, Any] = {"n_critics": 2, "batch_size": 16, "critic_iterations": 1, "fit_steps": 1, "seed": 0}


@all_spaces
def test_spaces_as_json(space):
    again = space_of(describe(space))
    assert again == space
    assert difference(describe(again), describe(space)) is None


@all_spaces
def test_what_is_written_is_read(space, tmp_path):
    steps = list(transitions(space))
    with Journal(tmp_path / "j.sqlite", space, ACTIONS) as journal:
        assert [journal.append(step) for step in steps] == list(range(1, 13))
    with Journal(tmp_path / "j.sqlite") as journal:
        assert (journal.observation_space, journal.action_space) == (space, ACTIONS)
        assert all(map(same, steps, journal.steps()))
        assert len(journal) == journal.last == len(list(journal.steps())) == 12
        assert len(list(journal.steps(after=7))) == 5


def test_states_and_rewards_that_make_no_sense(tmp_path):
    with Journal(tmp_path / "j.sqlite", spaces.Discrete(4), spaces.Discrete(2)) as journal:
        with pytest.raises(ValueError, match="single precision"):
            journal.append(Transition(0, 0, 1e300, 0, False, False))
        journal.append(Transition(7, 0, 0.0, 0, False, False))
        with pytest.raises(JournalError, match="is 7, outside"):
            list(journal.steps())
        change(tmp_path / "j.sqlite", "UPDATE transitions SET observation = next_observation, reward = 1e300")
        with pytest.raises(JournalError, match="transition 1"):
            list(journal.steps())


def test_dicts_in_another_order(tmp_path):
    space = spaces.Dict({"a": spaces.Box(0, 9, (1,)), "b": spaces.Box(0, 9, (1,))})
    seen = {"b": np.array([2], np.float32), "a": np.array([1], np.float32)}
    with Journal(tmp_path / "j.sqlite", space, spaces.Discrete(2)) as journal:
        journal.append(Transition(seen, 0, 0.0, seen, False, False))
        (step,) = journal.steps()
    assert {key: value.tolist() for key, value in step.observation.items()} == {"a": [1], "b": [2]}


def make(path: Path | None = None, **arguments: Any) -> BDPI:
    return BDPI("MlpPolicy", "CartPole-v1", journal=path, **{**SMALL, **arguments})


def test_an_agent_finds_its_experience_again(tmp_path):
    first = make(tmp_path / "robot.sqlite").learn(70)
    first.save(tmp_path / "agent")
    first.close_journal()
    again = make(tmp_path / "robot.sqlite")
    assert again.num_timesteps == 70
    before, after = first.replay_buffer.transitions(), again.replay_buffer.transitions()
    for name in ("observations", "actions", "rewards", "discounts", "next_observations"):
        np.testing.assert_array_equal(getattr(before, name), getattr(after, name))
    again.learn(30, reset_num_timesteps=False)
    assert len(read(tmp_path / "robot.sqlite")) == 100
    again.close_journal()
    assert sorted(os.listdir(tmp_path)) == ["agent.zip", "robot.sqlite"]  # which can be copied
    assert BDPI.load(tmp_path / "agent").collector.journal is None


def test_it_takes_the_latest_of_a_long_journal(tmp_path):
    make(tmp_path / "robot.sqlite").learn(70)
    small = make(tmp_path / "robot.sqlite", buffer_size=40)
    assert len(small.replay_buffer) == 40
    expected = [step.reward for step in read(tmp_path / "robot.sqlite")[30:]]
    assert small.replay_buffer.transitions().rewards.tolist() == expected


def test_a_checkpoint_and_what_came_after_it(tmp_path):
    agent = make(tmp_path / "robot.sqlite").learn(50)
    agent.save(tmp_path / "agent")
    agent.learn(20, reset_num_timesteps=False)  # and then it crashes
    agent.close_journal()
    loaded = BDPI.load(tmp_path / "agent", env="CartPole-v1", journal=tmp_path / "robot.sqlite")
    assert loaded.num_timesteps == len(loaded.replay_buffer) == 70
    other = make(tmp_path / "other.sqlite").learn(200)
    assert other.collector.journaled == 200
    other.close_journal()
    with pytest.raises(ValueError, match="is not the journal"):
        BDPI.load(tmp_path / "agent", env="CartPole-v1", journal=tmp_path / "other.sqlite")
    new = BDPI.load(tmp_path / "agent", env="CartPole-v1", journal=tmp_path / "new.sqlite")
    assert (new.num_timesteps, new.collector.journaled) == (50, 0)
    new.learn(5, reset_num_timesteps=False)
    assert new.collector.journaled == 5


@pytest.mark.parametrize("what", ["Box", "Dict"])
def test_normalization_after_a_crash(what, tmp_path):
    """VecNormalize's statistics are of everything in the journal, whatever was saved, and when."""
    box = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    space = box if what == "Box" else spaces.Dict({"arm": box, "mode": spaces.Box(0, 9, (1,))})
    policy = "MlpPolicy" if what == "Box" else "MultiInputPolicy"
    rng = np.random.default_rng(0)

    def loop() -> VecNormalize:
        return VecNormalize(DummyVecEnv([lambda: ControlLoop(space, spaces.Discrete(2))]), gamma=0.9)

    def live(agent: BDPI, steps: int) -> None:
        for number in range(steps):
            arm = rng.normal(3, 5, 2).astype(np.float32)
            seen = arm if what == "Box" else {"arm": arm, "mode": np.array([number % 7], np.float32)}
            agent.observe(seen, agent.act(seen), float(rng.normal(2)), seen, number % 9 == 8, number % 5 == 4)

    def statistics_of(agent: BDPI) -> dict[str, Any]:
        settings, arrays = describe_normalizer(agent.get_vec_normalize_env())
        return {**settings, **{name: array.tolist() for name, array in arrays.items()}}

    agent = BDPI(policy, loop(), journal=tmp_path / "robot.sqlite", **SMALL)
    live(agent, 40)
    agent.save(tmp_path / "agent")
    live(agent, 33)  # and then it crashes
    wanted = statistics_of(agent)
    agent.close_journal()
    loaded = BDPI.load(tmp_path / "agent", env=loop(), journal=tmp_path / "robot.sqlite")
    assert statistics_of(loaded) == wanted
    loaded.close_journal()
    again = BDPI(policy, loop(), journal=tmp_path / "robot.sqlite", **SMALL)
    assert statistics_of(again) == wanted
    again.close_journal()
    own = loop()
    own.ret_rms.update(np.arange(5.0))  # somebody's own statistics, which may be of this journal
    mine = describe_normalizer(own)[1]["ret_rms.mean"]
    BDPI(policy, own, journal=tmp_path / "robot.sqlite", **SMALL)
    assert own.ret_rms.mean == mine


def test_normalization_of_several_environments_after_a_crash(tmp_path):
    """As good as by learning on: only the first observations of episodes, instead of their last ones, are missing."""

    def envs() -> VecNormalize:
        return VecNormalize(DummyVecEnv([lambda: gym.make("CartPole-v1")] * 2))

    # kept draws, and learning fast, make episodes shorter, which then have more first observations
    slow = {"persistence": 1.0, "learning_rate": 1e-4, **SMALL}
    agent = BDPI("MlpPolicy", envs(), journal=tmp_path / "robot.sqlite", **slow).learn(100)
    agent.save(tmp_path / "agent")
    agent.learn(300, reset_num_timesteps=False)
    agent.close_journal()
    loaded = BDPI.load(tmp_path / "agent", env=envs(), journal=tmp_path / "robot.sqlite")
    found, wanted = loaded.get_vec_normalize_env(), agent.get_vec_normalize_env()
    assert found.obs_rms.count == pytest.approx(wanted.obs_rms.count)
    assert found.ret_rms.mean == pytest.approx(wanted.ret_rms.mean)
    assert found.ret_rms.var == pytest.approx(wanted.ret_rms.var)
    np.testing.assert_allclose(found.returns, wanted.returns)
    np.testing.assert_allclose(found.obs_rms.var, wanted.obs_rms.var, rtol=0.3)


class Saturating(gym.Env[Any, Any]):
    """A sensor that saturates when an episode ends, far outside of what a normaliser lets through."""

    action_space = spaces.Discrete(2)

    def __init__(self, is_dict: bool, truncates: bool) -> None:
        box = spaces.Box(-1000, 1000, (1,), np.float32)
        self.observation_space = spaces.Dict({"sensor": box}) if is_dict else box
        self.is_dict, self.truncates = is_dict, truncates

    def seen(self, value: float) -> Any:
        return {"sensor": np.array([value], np.float32)} if self.is_dict else np.array([value], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self.seen(self.np_random.normal()), {}

    def step(self, action):
        self.time += 1
        ends = self.time == 100
        seen = self.seen(500 if ends else self.np_random.normal())
        return seen, 0.0, ends and not self.truncates, ends and self.truncates, {}


@pytest.mark.parametrize("truncates", [False, True])
@pytest.mark.parametrize("is_dict", [False, True])
def test_the_last_observation_of_an_episode_is_kept_as_it_was(is_dict, truncates, tmp_path):
    """Also where VecNormalize has clipped it for the agent. After a time limit, its value is learned from."""
    env = VecNormalize(DummyVecEnv([lambda: Saturating(is_dict, truncates)] * 2), clip_obs=5.0)
    policy = "MultiInputPolicy" if is_dict else "MlpPolicy"
    agent = BDPI(policy, env, journal=tmp_path / "robot.sqlite", train_freq=100, **SMALL).learn(600)
    held = agent.replay_buffer.transitions()
    following = held.next_observations["sensor"] if is_dict else held.next_observations
    assert (following == 500).sum() == 6
    assert (held.discounts[following[:, 0] == 500] > 0).all() == truncates
    last = [step.next_observation for step in read(tmp_path / "robot.sqlite") if step.terminated or step.truncated]
    assert [float(seen["sensor"][0] if is_dict else seen[0]) for seen in last] == [500] * 6


def test_the_last_transitions_were_lost_with_the_power(tmp_path):
    make(tmp_path / "robot.sqlite").learn(50).save(tmp_path / "agent", include_buffer=True)
    change(tmp_path / "robot.sqlite", "DELETE FROM transitions WHERE id > 48")
    with pytest.warns(RuntimeWarning, match="has 48 transitions"):
        loaded = BDPI.load(tmp_path / "agent", env="CartPole-v1", journal=tmp_path / "robot.sqlite")
    assert len(loaded.replay_buffer) == 50
    loaded.learn(3, reset_num_timesteps=False)
    assert loaded.collector.journal.last == 51


def test_several_environments_masks_and_dicts(tmp_path):
    env = DummyVecEnv([lambda: gym.make("CartPole-v1")] * 3)
    BDPI("MlpPolicy", env, journal=tmp_path / "three.sqlite", **SMALL).learn(60)
    again = BDPI("MlpPolicy", env, journal=tmp_path / "three.sqlite", **SMALL)
    assert len(again.replay_buffer) == again.num_timesteps == 60
    again.close_journal()
    assert len(make(tmp_path / "three.sqlite").replay_buffer) == 60
    steps = read(tmp_path / "three.sqlite")
    assert [step.environment for step in steps] == [0, 1, 2] * 20
    for number in range(3):  # each has episodes of its own: a state follows from the one before
        own = steps[number::3]
        for before, after in itertools.pairwise(own):
            if not (before.terminated or before.truncated):
                np.testing.assert_array_equal(before.next_observation, after.observation)
    space = SPACES[-1]
    loop = ControlLoop(space, spaces.Discrete(3))
    agent = BDPI("MultiInputPolicy", loop, journal=tmp_path / "dict.sqlite", **SMALL)
    seen = {"arm": np.zeros(2, np.float32), "mode": 2}
    agent.observe(seen, agent.act(seen, mask=[1, 0, 1]), 1.0, seen, False, False, next_mask=[0, 1, 1])
    agent.close_journal()
    held = BDPI("MultiInputPolicy", loop, journal=tmp_path / "dict.sqlite", **SMALL).replay_buffer.transitions()
    assert held.masks.tolist() == [[True, False, True]]
    assert held.next_masks.tolist() == [[False, True, True]]
    assert held.observations["mode"].tolist() == [[2]]


def test_the_journal_of_another_environment(tmp_path):
    make(tmp_path / "robot.sqlite").learn(5)
    with pytest.raises(JournalError, match="Box there, Discrete here"):
        BDPI("MlpPolicy", "FrozenLake-v1", journal=tmp_path / "robot.sqlite", **SMALL)
    loop = ControlLoop(gym.make("CartPole-v1").observation_space, spaces.Discrete(3))
    with pytest.raises(JournalError, match="n 2 there, 3 here"):
        BDPI("MlpPolicy", loop, journal=tmp_path / "robot.sqlite", **SMALL)
    assert make(tmp_path / "robot.sqlite").num_timesteps == 5


def test_files_that_are_no_journals(tmp_path):
    text, database = tmp_path / "notes.txt", tmp_path / "other.sqlite"
    text.write_text("a shopping list")
    change(database, "CREATE TABLE customers (name TEXT)")
    for path in (text, database):
        before = path.read_bytes()
        with pytest.raises(JournalError, match="not a journal"):
            make(path)
        assert path.read_bytes() == before
    with pytest.raises(JournalError, match="there is no journal"):
        Journal(tmp_path / "nowhere.sqlite")
    assert not (tmp_path / "nowhere.sqlite").exists()
    with pytest.raises(JournalError, match="cannot be opened"):
        make(tmp_path / "no" / "folder.sqlite")


SMALL_DISK = """
import resource, signal, sys
import gymnasium as gym
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from bdpi import BDPI


class Count(gym.Env):
    observation_space, action_space = spaces.Box(0, 1e6, (8,), np.float32), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.number = 0
        return np.zeros(8, np.float32), {}

    def step(self, action):
        self.number += 1
        return np.full(8, self.number, np.float32), float(self.number), False, False, {}


def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
env = DummyVecEnv([Count] * int(sys.argv[2]))
env = VecNormalize(env) if sys.argv[3] == "normalized" else env
small = dict(n_critics=2, batch_size=16, critic_iterations=1, fit_steps=1, train_freq=50)
agent = BDPI("MlpPolicy", env, journal=sys.argv[1], **small)
limit(150_000)
for _ in range(2):
    try:
        agent.learn(4000, reset_num_timesteps=False)
    except ValueError as error:
        print(error)
limit(100_000_000)
agent.learn(200, reset_num_timesteps=False)
print(agent.num_timesteps, len(agent.replay_buffer))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="files are not limited there")
@pytest.mark.parametrize(
    ("n_envs", "normalized"),
    [
        (2, "normalized"),
        *(pytest.param(*more, marks=pytest.mark.full) for more in ((1, "plain"), (1, "normalized"), (2, "plain"))),
    ],
)
def test_learning_goes_on_after_a_full_disk(n_envs, normalized, tmp_path):
    """With what could not be stored, an episode is given up: no transition leads over it."""
    path = tmp_path / "robot.sqlite"
    command = [sys.executable, "-c", SMALL_DISK, str(path), str(n_envs), normalized]
    *errors, counts = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    assert len(errors) == 2
    assert all(f"the journal {path} cannot be written" in error and "Make room and go on" in error for error in errors)
    steps = read(path)
    assert counts.split() == [str(len(steps))] * 2
    for number in range(n_envs):
        own = steps[number::n_envs]
        assert {step.environment for step in own} == {number}
        assert all(step.next_observation[0] == step.observation[0] + 1 == step.reward for step in own)
        pairs = [(before.next_observation[0], step.observation[0]) for before, step in itertools.pairwise(own)]
        assert [start for end, start in pairs if start != end] == [0]  # the second failure came with the first step


def test_learning_goes_on_after_an_interruption(monkeypatch):
    """Wherever Ctrl-C arrives in a step, the environment may have gone on."""

    class Count(gym.Env[Any, Any]):
        observation_space, action_space = spaces.Box(0, 1e6, (1,), np.float32), spaces.Discrete(2)
        interrupts = False

        def reset(self, *, seed=None, options=None):
            self.number = 0
            return np.zeros(1, np.float32), {}

        def step(self, action):
            self.number += 1
            if self.interrupts:
                raise KeyboardInterrupt
            return np.full(1, self.number, np.float32), 0.0, False, False, {}

    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    env = Count()
    agent = BDPI("MlpPolicy", env, **SMALL).learn(10)
    for where, name, value in ((env, "interrupts", True), (agent.collector, "store", interrupt)):
        with monkeypatch.context() as patch:
            patch.setattr(where, name, value)
            with pytest.raises(KeyboardInterrupt):
                agent.learn(10, reset_num_timesteps=False)
        agent.learn(10, reset_num_timesteps=False)
    held = agent.replay_buffer.transitions()
    np.testing.assert_array_equal(held.next_observations, held.observations + 1)
    assert agent.num_timesteps == len(agent.replay_buffer) == 30


@pytest.fixture
def folder() -> Iterator[Path]:
    with public_folder() as path:
        yield path


needs_rights = pytest.mark.skipif(sys.platform == "win32", reason="folders have other rights there")


@needs_rights
def test_a_journal_that_is_only_read_stays_as_it_is(folder):
    path = folder / "robot.sqlite"
    make(path).learn(20).close_journal()
    held = path.read_bytes()
    with Journal(path, read_only=True) as journal:
        assert len(journal) == 20
    with only_readable(folder):
        with Journal(path, read_only=True) as journal:
            assert len(list(journal.steps())) == 20
            with pytest.raises(JournalError, match="opened for reading only"):
                journal.append(next(journal.steps()))
        assert examine(path).transitions == 20
        assert make().add_demonstrations(path) == 20
        with pytest.raises(JournalError, match="cannot be opened"):
            Journal(path)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == {"robot.sqlite": held}
    with pytest.raises(JournalError, match="there is no journal"):
        Journal(folder / "new.sqlite", journal.observation_space, journal.action_space, read_only=True)


@needs_rights
def test_the_card_of_a_robot_that_crashed_can_be_read(folder, tmp_path):
    """The last transitions are in a file beside the journal, which SQLite cannot always read without writing."""
    agent = make(tmp_path / "robot.sqlite").learn(20)
    for file in tmp_path.iterdir():  # what is there while it runs
        shutil.copyfile(file, folder / file.name)
    agent.close_journal()
    held = {file.name: file.stat().st_size for file in folder.iterdir()}
    assert held["robot.sqlite-wal"] > 0
    with only_readable(folder), Journal(folder / "robot.sqlite", read_only=True) as journal:
        assert len(list(journal.steps())) == 20
    with Journal(folder / "robot.sqlite", read_only=True) as journal:
        assert len(list(journal.steps())) == 20
    assert {file.name: file.stat().st_size for file in folder.iterdir()} == held
    (folder / "robot.sqlite-shm").unlink()
    with only_readable(folder), pytest.raises(JournalError, match="Copy both"):
        Journal(folder / "robot.sqlite", read_only=True)


OPEN = """
import sys
from bdpi.agents.journal import Journal
journal = Journal(sys.argv[1])
print("open", flush=True)
sys.stdin.read()
"""


@needs_rights
def test_a_journal_that_somebody_else_has_open_is_never_read_as_if_nobody_had(folder):
    """Without locks and without its log, that is, also where the log is still empty."""
    make(folder / "robot.sqlite").learn(20).close_journal()
    command = [sys.executable, "-c", OPEN, str(folder / "robot.sqlite")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as robot:
        assert robot.stdout is not None
        assert robot.stdout.readline() == "open\n"
        assert (folder / "robot.sqlite-wal").stat().st_size == 0
        with only_readable(folder), Journal(folder / "robot.sqlite", read_only=True) as journal:
            assert len(journal) == 20
        with only_readable(folder, "robot.sqlite-shm"), pytest.raises(JournalError, match="program has it open"):
            Journal(folder / "robot.sqlite", read_only=True)
        robot.kill()


@pytest.mark.skipif(sys.platform == "win32", reason="nothing can be locked there")
def test_a_second_agent_is_refused(tmp_path):
    """In this process; others look at the journal, and somebody who appends without an agent is refused, too."""
    first = make(tmp_path / "robot.sqlite").learn(10)
    for _ in range(2):
        with pytest.raises(JournalError, match="another agent"):
            make(tmp_path / "robot.sqlite")
        with Journal(tmp_path / "robot.sqlite") as journal:
            (step,) = journal.steps(after=9)
            with pytest.raises(JournalError, match="another agent"):
                journal.append(step)
    first.learn(5, reset_num_timesteps=False)
    assert examine(tmp_path / "robot.sqlite").transitions == 15
    first.close_journal()
    second = make(tmp_path / "robot.sqlite").learn(1, reset_num_timesteps=False)
    assert second.num_timesteps == 16
    del second  # nor does an agent that nobody has any more keep its journal from others
    assert make(tmp_path / "robot.sqlite").num_timesteps == 16


def test_a_journal_that_is_closed(tmp_path):
    loop = ControlLoop(spaces.Discrete(4), spaces.Discrete(2))
    with Journal(tmp_path / "robot.sqlite", loop.observation_space, loop.action_space) as journal:
        agent = BDPI("MlpPolicy", loop, journal=journal, **SMALL)
        agent.observe(1, agent.act(1), 0.0, 2, False, False)
    for _ in range(2):
        with pytest.raises(JournalError, match="is closed"):
            agent.observe(2, agent.act(2), 0.0, 3, False, False)
    assert len(agent.replay_buffer) == agent.num_timesteps == 1


@pytest.mark.parametrize("include_buffer", [False, True])
@pytest.mark.parametrize("in_background", [False, True])
def test_interrupted_between_journal_and_memory(in_background, include_buffer, tmp_path, monkeypatch):
    """Ctrl-C where it hurts most: the transition is in the journal, and nobody else knows of it."""
    loop = ControlLoop(spaces.Box(-1, 1, (1,), np.float32), spaces.Discrete(2))
    seen = np.zeros(1, np.float32)

    def rewards_of(agent: BDPI) -> list[float]:
        return agent.replay_buffer.transitions().rewards.tolist()

    def live(agent: BDPI, *rewards: float) -> None:
        for reward in rewards:
            agent.observe(seen, agent.act(seen), reward, seen, False, False)

    def interrupted(store: Any) -> None:
        raise KeyboardInterrupt

    agent = BDPI("MlpPolicy", loop, journal=tmp_path / "robot.sqlite", **SMALL)
    if in_background:
        agent.start_learning()
    live(agent, 0, 1, 2)
    with monkeypatch.context() as patched:
        patched.setattr(agent.collector, "defer", interrupted)
        with pytest.raises(KeyboardInterrupt):
            live(agent, 3)
    agent.save(tmp_path / "at once", include_buffer=include_buffer)
    live(agent, 4)
    agent.save(tmp_path / "later", include_buffer=include_buffer)
    agent.stop_learning()
    assert rewards_of(agent) == [0, 1, 2, 3, 4]
    assert agent.num_timesteps == 5
    agent.close_journal()
    for name in ("at once", "later"):
        loaded = BDPI.load(tmp_path / name, env=loop, journal=tmp_path / "robot.sqlite")
        assert rewards_of(loaded) == [0, 1, 2, 3, 4]
        assert loaded.num_timesteps == 5
        loaded.close_journal()


@pytest.mark.skipif(sys.platform == "win32", reason="files that are open stay where they are there")
def test_a_journal_that_is_moved_or_deleted_is_noticed(tmp_path, monkeypatch):
    path, elsewhere = tmp_path / "robot.sqlite", tmp_path / "elsewhere.sqlite"
    monkeypatch.chdir(tmp_path)
    agent = make(Path("robot.sqlite")).learn(10)
    monkeypatch.chdir(tmp_path.parent)  # which changes nothing
    agent.learn(1, reset_num_timesteps=False)
    path.rename(elsewhere)
    for _ in range(2):
        with pytest.raises(JournalError, match="no longer"):
            agent.learn(1, reset_num_timesteps=False)
    path.write_bytes(b"")  # somebody else's
    with pytest.raises(JournalError, match="no longer"):
        agent.learn(1, reset_num_timesteps=False)
    elsewhere.replace(path)
    agent.learn(1, reset_num_timesteps=False)
    assert len(agent.collector.journal) == len(agent.replay_buffer) == 12
    agent.close_journal()
    assert len(make(path).replay_buffer) == 12


def test_another_program_that_writes_is_noticed(tmp_path):
    """One that does not ask, or where nothing can be locked."""
    agent = make(tmp_path / "robot.sqlite").learn(10)
    names = "observation, action, reward, next_observation, terminated, truncated"
    change(tmp_path / "robot.sqlite", f"INSERT INTO transitions ({names}) SELECT {names} FROM transitions")
    with pytest.raises(JournalError, match="another program writes"):
        agent.learn(1, reset_num_timesteps=False)
