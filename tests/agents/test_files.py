"""Saved agents: complete, and harmless whatever is in the file."""

import io
import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import safetensors.numpy
from gymnasium import spaces
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import CheckpointCallback
from stable_baselines3.common.save_util import load_from_pkl, save_to_pkl
from stable_baselines3.common.torch_layers import FlattenExtractor
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecNormalize
from torch import nn

from bdpi import ABCDQN, BDPI, ActorMimic, BootstrappedDQN, TabularBDPI
from bdpi.agents.arguments import settings_of
from bdpi.agents.encoding import decode, encode
from bdpi.agents.policies import MlpPolicy
from bdpi.envs import ControlLoop

SMALL: dict[str, Any] = {"n_critics": 2, "batch_size": 16, "critic_iterations": 1, "fit_steps": 2, "seed": 0}
AGENTS = [BDPI, ActorMimic, ABCDQN, BootstrappedDQN, TabularBDPI]


def make(agent_class: type = BDPI, env: Any = "FrozenLake-v1", **arguments: Any) -> Any:
    return agent_class("MlpPolicy", env, **{**SMALL, **arguments})


def content(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    with zipfile.ZipFile(path) as archive:
        return json.loads(archive.read("agent.json")), safetensors.numpy.load(archive.read("arrays.safetensors"))


def rewrite(path: Path, document: Any, arrays: bytes) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("agent.json", document if isinstance(document, bytes) else json.dumps(document))
        archive.writestr("arrays.safetensors", arrays)


def same_state(first: Any, second: Any) -> None:
    one, other = (agent.agent_learner.learner.state_dict() for agent in (first, second))
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


@pytest.mark.parametrize(("agent_class", "learner"), [*((each, "auto") for each in AGENTS), (BDPI, "torch")])
@pytest.mark.parametrize("n_envs", [1, 2])
def test_everything_is_in_one_file(agent_class, learner, n_envs, tmp_path):
    """An agent that is loaded and one that was never saved learn the same from the same experience."""
    env = DummyVecEnv([lambda: gym.make("FrozenLake-v1")] * n_envs)
    agent = make(agent_class, env, learner=learner, critic_iterations=3).learn(60)
    agent.save(tmp_path / "agent", include_buffer=True)
    loaded = agent_class.load(tmp_path / "agent.zip", env=env)
    loaded.save(tmp_path / "again", include_buffer=True)
    (before, arrays), (after, same_arrays) = (content(tmp_path / f"{name}.zip") for name in ("agent", "again"))
    assert arrays.keys() - {"attributes._last_obs"} == same_arrays.keys() - {"attributes._last_obs"}
    for name in same_arrays:
        np.testing.assert_array_equal(arrays[name], same_arrays[name])
    before["attributes"].pop("_last_obs")  # a loaded agent begins with a new episode
    after["attributes"].pop("_last_obs")
    assert before == after
    for each in (agent, loaded):
        for _ in range(5):
            each._learn_once()
    same_state(agent, loaded)
    with pytest.raises(ValueError, match="holds an agent of class"):
        next(other for other in AGENTS if other is not agent_class).load(tmp_path / "agent.zip")


class Walk(gym.Env):
    """A walk that goes on where it was: what happens depends on its own history, not on the seeds of resets."""

    observation_space = spaces.Discrete(5)
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.place = 2

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.place = int(self.rng.integers(1, 4))
        return self.place, {}

    def step(self, action: Any) -> Any:
        self.place += 1 if action == 1 and self.rng.random() < 0.8 else -1
        done = self.place in (0, 4)
        return self.place, float(self.place == 4), done, False, {}


@pytest.mark.parametrize("agent_class", AGENTS)
@pytest.mark.parametrize("n_envs", [1, 2])
def test_split_at_any_step_it_learns_the_same(agent_class, n_envs, tmp_path):
    whole = make(agent_class, DummyVecEnv([Walk] * n_envs)).learn(120)
    for split in np.random.default_rng(n_envs).integers(1, 60, 3):
        env = DummyVecEnv([Walk] * n_envs)
        first = make(agent_class, env).learn(int(split) * 2)
        first.save(tmp_path / "agent", include_buffer=True)
        second = agent_class.load(tmp_path / "agent", env=env, force_reset=False)
        second.learn(120 - int(split) * 2, reset_num_timesteps=False)
        assert second.num_timesteps == 120
        same_state(whole, second)
        assert memory_of(whole) == memory_of(second)


class Track(Walk):
    """The same with numbers to normalise and to stack."""

    observation_space = spaces.Box(0, 4, (1,), np.float32)

    def reset(self, **arguments: Any) -> Any:
        place, info = super().reset(**arguments)
        return np.array([place], np.float32), info

    def step(self, action: Any) -> Any:
        place, *others = super().step(action)
        return np.array([place], np.float32), *others


@pytest.mark.parametrize("n_envs", [1, 2])
@pytest.mark.parametrize("stacks", [False, True])
def test_split_at_any_step_normalization_is_the_same(n_envs, stacks, tmp_path):
    """A normaliser is made anew and gets the file's statistics; a stack of frames is the environment's to keep."""

    def inside() -> Any:
        envs = DummyVecEnv([Track] * n_envs)
        return VecFrameStack(envs, 3) if stacks else envs

    whole = make(env=VecNormalize(inside())).learn(120)
    for split in np.random.default_rng(n_envs).integers(1, 60, 3):
        env = inside()
        make(env=VecNormalize(env)).learn(int(split) * 2).save(tmp_path / "agent", include_buffer=True)
        second = BDPI.load(tmp_path / "agent", env=env, force_reset=False)
        second.learn(120 - int(split) * 2, reset_num_timesteps=False)
        same_state(whole, second)
        for name in ("mean", "var", "count"):
            one, other = (getattr(each.get_vec_normalize_env().obs_rms, name) for each in (whole, second))
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("wrapped", [True, False])
def test_normalization_is_saved(wrapped, tmp_path):
    def vectors() -> Any:
        return DummyVecEnv([lambda: gym.make("CartPole-v1")] * 2)

    env = VecNormalize(vectors(), clip_obs=4.0, norm_reward=True, gamma=0.9)
    agent = make(env=env).learn(80)
    agent.save(tmp_path / "agent", include_buffer=True)
    loaded = BDPI.load(tmp_path / "agent", env=VecNormalize(vectors()) if wrapped else vectors())
    again = loaded.get_vec_normalize_env()
    assert (again.clip_obs, again.norm_reward, again.gamma) == (4.0, True, 0.9)
    for name in ("mean", "var", "count"):
        np.testing.assert_array_equal(getattr(again.obs_rms, name), getattr(env.obs_rms, name))
        np.testing.assert_array_equal(getattr(again.ret_rms, name), getattr(env.ret_rms, name))
    np.testing.assert_array_equal(again.returns, env.returns)
    for each in (agent, loaded):
        each._learn_once()
    same_state(agent, loaded)
    with pytest.raises(ValueError, match=r"do not match|does not fit|different"):
        BDPI.load(tmp_path / "agent", env=VecNormalize(DummyVecEnv([lambda: gym.make("LunarLander-v3")])))


def test_a_normalizer_is_not_lost_without_an_environment_and_stays_as_it_is_used(tmp_path):
    """As Stable-Baselines3's users do to evaluate: no new statistics, and rewards as they are."""
    env, own = (VecNormalize(DummyVecEnv([lambda: gym.make("CartPole-v1")])) for _ in range(2))
    make(env=env).learn(40).save(tmp_path / "first")
    BDPI.load(tmp_path / "first").save(tmp_path / "second")
    own.training, own.norm_reward = False, False
    assert BDPI.load(tmp_path / "second", env=own).get_vec_normalize_env() is own
    assert (own.training, own.norm_reward) == (False, False)
    again = BDPI.load(tmp_path / "second", env="CartPole-v1").get_vec_normalize_env()
    for each in (own, again):
        np.testing.assert_array_equal(each.obs_rms.mean, env.obs_rms.mean)


def test_open_files_callbacks_and_files_without_the_memory(tmp_path):
    agent = make().learn(20)
    stream = io.BytesIO()
    agent.save(stream)
    stream.seek(0)
    loaded = BDPI.load(stream)
    assert (loaded.num_timesteps, len(loaded.replay_buffer)) == (20, 0)
    agent.learn(40, callback=CheckpointCallback(20, str(tmp_path), save_replay_buffer=True))
    assert BDPI.load(tmp_path / "rl_model_20_steps.zip").num_timesteps == 20
    agent.load_replay_buffer(tmp_path / "rl_model_replay_buffer_40_steps.pkl")
    assert len(agent.replay_buffer) == 60
    assert not list(tmp_path.glob(".*partial"))
    agent.save(tmp_path / "with", include_buffer=True)
    assert len(BDPI.load(tmp_path / "with").replay_buffer) == 60
    with pytest.raises(ValueError, match="does not fit"):
        BDPI.load(tmp_path / "with", buffer_size=20)


@pytest.mark.parametrize("agent_class", AGENTS)
def test_load_takes_what_constructors_take_and_nothing_else(agent_class, tmp_path):
    agent = make(agent_class).learn(20)
    agent.save(tmp_path / "agent")
    for name in settings_of(agent_class):
        if hasattr(agent, name):
            agent_class.load(tmp_path / "agent", **{name: getattr(agent, name)})
    with pytest.raises(ValueError, match="did you mean journal"):
        agent_class.load(tmp_path / "agent", env="FrozenLake-v1", jurnal=tmp_path / "robot.sqlite")
    # attributes, as in Stable-Baselines3
    assert agent_class.load(tmp_path / "agent", optimize_memory_usage=False, num_timesteps=7).num_timesteps == 7
    if agent_class is not TabularBDPI:
        assert agent_class.load(tmp_path / "agent", learner="torch").learner_name == "torch"
    assert agent_class.load(tmp_path / "agent", stats_window_size=3)._stats_window_size == 3


class MyPolicy(MlpPolicy):
    pass


class MyExtractor(FlattenExtractor):
    pass


def test_what_a_file_cannot_hold_is_asked_for(tmp_path):
    own = BDPI(MyPolicy, "FrozenLake-v1", **SMALL)
    own.save(tmp_path / "policy")
    with pytest.raises(ValueError, match="MyPolicy"):
        BDPI.load(tmp_path / "policy")
    assert isinstance(BDPI.load(tmp_path / "policy", custom_objects={"policy_class": MyPolicy}).policy, MyPolicy)

    kwargs = {"features_extractor_class": MyExtractor, "activation_fn": nn.ReLU, "net_arch": {"pi": [8], "qf": [4]}}
    make(env="CartPole-v1", policy_kwargs=kwargs).save(tmp_path / "extractor")
    with pytest.raises(ValueError, match="MyExtractor"):
        BDPI.load(tmp_path / "extractor")
    loaded = BDPI.load(tmp_path / "extractor", custom_objects={"policy_kwargs": kwargs})
    assert loaded.policy.activation_fn is nn.ReLU

    make(learning_rate=lambda progress: 1e-3 * progress).save(tmp_path / "schedule")
    with pytest.raises(ValueError, match="learning_rate"):
        BDPI.load(tmp_path / "schedule")
    assert BDPI.load(tmp_path / "schedule", learning_rate=1e-4).learning_rate == 1e-4
    make(learning_rate=LinearSchedule(1e-3, 1e-5, 0.5)).save(tmp_path / "linear")
    assert BDPI.load(tmp_path / "linear").lr_schedule(0.5) == pytest.approx(1e-5)


def test_values_that_json_does_not_have():
    values = {
        "tuple": (1, [2.5, None], {"a": (True,)}),
        "numbers": [float("inf"), -float("inf"), np.float32(0.1), np.int64(3), np.bool_(True)],
        "keys": {1: "one", "is": "two"},
        "array": np.arange(6).reshape(2, 3),
    }
    arrays: dict[str, np.ndarray] = {}
    text = json.dumps(encode(values, arrays, "x"), allow_nan=False)
    again = decode(json.loads(text), arrays)
    assert again["tuple"] == values["tuple"]
    assert again["numbers"] == values["numbers"]
    assert [type(number) for number in again["numbers"]] == [type(number) for number in values["numbers"]]
    assert again["keys"] == values["keys"]
    np.testing.assert_array_equal(again["array"], values["array"])
    generator = np.random.default_rng(3)
    generator.random(7)
    twin = decode(json.loads(json.dumps(encode(generator, arrays, "g"))), arrays)
    assert twin.random() == generator.random()


def test_a_pickle_is_never_opened(tmp_path):
    trace, path = tmp_path / "trace", tmp_path / "agent.zip"
    make().learn(20).save(path)
    document, arrays = content(path)
    payload, whole = pickle.dumps(Pickled(trace)), safetensors.numpy.save(arrays)
    serialized = {":serialized:": "gASVIAAAAAAAAACMAm9zlIwGc3lzdGVtlJOUjAR0cnVllIWUUpQu"}
    attributes = document["attributes"]
    for wrong, numbers in (
        (payload, whole),
        (document, payload),
        ({**document, "attributes": {**attributes, "trust_region": serialized}}, whole),
        ({**document, "attributes": {**attributes, "policy_class": {"is": "class", "name": "os.system"}}}, whole),
    ):
        rewrite(path, wrong, numbers)
        with pytest.raises(ValueError, match=r"damaged|trust_region|unknown class 'os\.system'"):
            BDPI.load(path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("agent.json", b" " * 100_000_000)
        archive.writestr("arrays.safetensors", b"")
    with pytest.raises(ValueError, match="compressed"):
        BDPI.load(path)
    assert not trace.exists()


class Pickled:
    """A pickle that leaves a trace when it is read."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> Any:
        return (open, (str(self.trace), "w"))


def memory_of(agent: BDPI) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in agent.replay_buffer.held().items()}


@pytest.mark.parametrize("where", ["path", "no ending", "open"])
def test_replay_memories_are_files_without_pickle(where, tmp_path):
    agent = make(env=DummyVecEnv([lambda: gym.make("FrozenLake-v1")] * 2)).learn(60)
    path: Any = {"path": str(tmp_path / "new" / "memory.npz"), "no ending": tmp_path / "memory", "open": io.BytesIO()}
    path = path[where]
    agent.save_replay_buffer(path)
    if where == "open":
        assert path.getvalue()[:2] == b"PK"
        path.seek(0)
    else:
        assert len(list(tmp_path.rglob("memory.npz"))) == 1
    other = make(env=DummyVecEnv([lambda: gym.make("FrozenLake-v1")] * 2))
    other.load_replay_buffer(path, truncate_last_traj=False)
    assert memory_of(other) == memory_of(agent)
    other.learn(20)


def test_a_pickled_memory_is_refused_nothing_changes_and_it_is_converted_as_the_message_says(tmp_path):
    trace, path = tmp_path / "trace", tmp_path / "memory.pkl"
    path.write_bytes(pickle.dumps(Pickled(trace)))
    agent = make().learn(40)
    before, memory = memory_of(agent), agent.replay_buffer
    for source in (path, str(path), tmp_path / "memory", io.BytesIO(path.read_bytes())):
        with pytest.raises(ValueError, match="is a pickle"):
            agent.load_replay_buffer(source)
    path.write_bytes(pickle.dumps(Pickled(trace), protocol=0))
    with pytest.raises(ValueError, match="not a replay memory"):
        agent.load_replay_buffer(path)
    with pytest.raises(FileNotFoundError):
        agent.load_replay_buffer(tmp_path / "nowhere")
    assert not trace.exists()
    assert agent.replay_buffer is memory
    assert memory_of(agent) == before
    save_to_pkl(path, agent.replay_buffer)
    load_from_pkl(path).save_npz(tmp_path / "memory.npz")
    other = make()
    other.load_replay_buffer(tmp_path / "memory.npz")
    assert memory_of(other) == before
    assert make().add_demonstrations(load_from_pkl(path)) == 40


@pytest.mark.parametrize("agent_class", AGENTS)
def test_parameters_are_taken_from_a_file_or_another_agent(agent_class, tmp_path):
    first, second, third = make(agent_class).learn(40), make(agent_class, seed=1), make(agent_class, seed=2)
    first.save(tmp_path / "agent", include_buffer=True)
    second.set_parameters(tmp_path / "agent")
    third.set_parameters(first.get_parameters())
    for other in (second, third):
        same_state(first, other)
        np.testing.assert_array_equal(*(each.predict(np.arange(16), deterministic=True)[0] for each in (first, other)))
        assert other.num_timesteps == 0
    with (tmp_path / "agent.zip").open("rb") as file:
        make(agent_class, seed=1).set_parameters(file)


def test_parameters_that_do_not_fit_change_nothing(tmp_path):
    agent = make()
    before = {name: array.copy() for name, array in agent.agent_learner.learner.state_dict().items()}
    make(n_critics=3, seed=1).save(tmp_path / "more")
    make(policy_kwargs={"net_arch": [8]}, seed=1).save(tmp_path / "other")
    DQN("MlpPolicy", "FrozenLake-v1", buffer_size=10).save(tmp_path / "dqn")
    for name in ("more", "other", "dqn"):
        with pytest.raises(ValueError, match=r"do not fit this agent|no bdpi agent"):
            agent.set_parameters(tmp_path / name)
    with pytest.raises(ValueError, match="Names of parameters"):
        agent.set_parameters({"policy": make(seed=1).get_parameters()["policy"]})
    with pytest.raises(FileNotFoundError):
        agent.set_parameters(tmp_path / "nowhere")
    for name, array in agent.agent_learner.learner.state_dict().items():
        np.testing.assert_array_equal(array, before[name])


def test_a_memory_of_other_environments_is_named_and_the_remedies_work(tmp_path):
    agent = make(BDPI, DummyVecEnv([Walk] * 2)).learn(40)
    agent.save(tmp_path / "agent", include_buffer=True)
    agent.save_replay_buffer(tmp_path / "memory")
    message = "saved with 2 environments, and this agent has 1"
    with pytest.raises(ValueError, match=message):
        BDPI.load(tmp_path / "agent", env=Walk())
    with pytest.raises(ValueError, match=message):
        make(BDPI, Walk()).load_replay_buffer(tmp_path / "memory")
    assert len(BDPI.load(tmp_path / "agent", env=DummyVecEnv([Walk] * 2)).replay_buffer) == 40
    BDPI.load(tmp_path / "agent").save(tmp_path / "without")
    BDPI.load(tmp_path / "without", env=Walk()).learn(20)


PICTURE = spaces.Box(0, 255, (36, 36, 3), np.uint8)


NUMBER = spaces.Box(-1, 1, (2,), np.float32)


@pytest.mark.parametrize(
    ("policy", "space", "fit_steps"),
    [
        ("CnnPolicy", PICTURE, 1),
        ("MultiInputPolicy", spaces.Dict(camera=PICTURE, speed=NUMBER), 1),
        ("MultiInputPolicy", spaces.Dict(room=spaces.Discrete(3), speed=NUMBER), 20),
        ("MlpPolicy", NUMBER, 20),
    ],
)
def test_one_step_per_fit_is_the_default_with_pictures(policy, space, fit_steps, tmp_path):
    agent = BDPI(policy, ControlLoop(space, spaces.Discrete(2)), n_critics=1)
    agent.save(tmp_path / "new")
    for each in (agent, BDPI.load(tmp_path / "new")):
        assert each.hyperparameters().fit_steps == fit_steps
