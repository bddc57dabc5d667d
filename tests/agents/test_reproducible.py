"""Same seed, same bits; and a saved agent is the whole agent."""

import io
import pathlib
import zipfile

import numpy as np
import pytest
from stable_baselines3 import DQN

from bdpi import BDPI
from small import QUICK, Walk, fingerprint, quick_agent


def test_the_agent_does_not_draw_the_numbers_of_its_environment():
    """With the same seed, a slippery environment and an exploring agent must not throw the same dice."""
    agent = quick_agent(seed=7)
    environment = np.random.default_rng(7).random(1000)  # what Gymnasium gives an environment
    own = agent._generator.random(1000)
    assert not np.isin(own, environment).any()
    assert not np.isin(agent.policy.generator.random(1000), [environment, own]).any()


def test_set_random_seed_starts_all_draws_again_and_they_are_saved(tmp_path):
    agent = quick_agent().learn(30)
    observations = np.zeros((50, 3), np.float32)
    draws = []
    for _ in range(2):
        agent.set_random_seed(7)
        draws.append((agent.predict(observations)[0], [agent.act(observation) for observation in observations]))
    np.testing.assert_array_equal(draws[0], draws[1])
    agent.save(tmp_path / "agent")
    loaded = BDPI.load(tmp_path / "agent")
    np.testing.assert_array_equal(loaded.predict(observations)[0], agent.predict(observations)[0])


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_do_not_change_an_agent(threads):
    assert fingerprint(quick_agent(n_threads=threads).learn(50)) == fingerprint(quick_agent(n_threads=1).learn(50))


def test_loading_does_not_rescale_or_repeat_anything(tmp_path):
    agent = quick_agent(train_freq=4, gradient_steps=2, learning_rate=2e-4).learn(40)
    path = tmp_path / "agent.zip"
    for _ in range(3):
        agent.save(path)
        agent = BDPI.load(path, env=Walk())
    assert agent.train_freq.frequency == 4
    assert agent.gradient_steps == 2
    assert agent.replay_buffer.buffer_size == QUICK["buffer_size"]
    assert agent.hyperparameters().learning_rate == agent.learning_rate == 2e-4


def test_a_loaded_agent_does_not_replay_the_first_episodes(tmp_path):
    class Remember(Walk):
        first = None

        def reset(self, *, seed=None, options=None):
            result = super().reset(seed=seed)
            self.first = self.first if self.first is not None else result[0]
            return result

    env = Remember()
    agent = quick_agent(env, seed=5).learn(30)
    agent.save(tmp_path / "agent.zip")
    firsts = []
    for _ in range(2):
        again = Remember()
        BDPI.load(tmp_path / "agent.zip", env=again).learn(10, reset_num_timesteps=False)
        firsts.append(again.first)
    assert not np.array_equal(env.first, firsts[0])
    np.testing.assert_array_equal(firsts[0], firsts[1])  # but it is reproducible


def test_the_policy_follows_the_learner_without_copies():
    agent = quick_agent(learning_rate=0.01)
    observations = np.ones((1, 3), np.float32)
    before = agent.policy.probabilities(observations)
    agent.learn(40)
    assert not np.array_equal(agent.policy.probabilities(observations), before)
    followed = agent.agent_learner.learner.policy(agent.policy.scales.inputs(observations))
    np.testing.assert_allclose(agent.policy.probabilities(observations), followed, atol=1e-6)


# -- files that are not what they should be ------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path) -> pathlib.Path:
    agent = quick_agent().learn(30)
    agent.save(tmp_path / "agent.zip")
    agent.replay_buffer.save_npz(tmp_path / "replay.npz")
    DQN("MlpPolicy", "CartPole-v1", buffer_size=10).save(tmp_path / "dqn.zip")
    return tmp_path / "agent.zip"


def without(whole: bytes, name: str, content: bytes | None = None) -> bytes:
    """The same archive without a part, or with another."""
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(whole)) as archive, zipfile.ZipFile(stream, "w") as other:
        for part in archive.namelist():
            if part != name or content is not None:
                other.writestr(part, content if part == name else archive.read(part))
    return stream.getvalue()


DAMAGES = {
    "text": lambda whole: b"hello",
    "cut early": lambda whole: whole[: len(whole) // 3],
    "cut late": lambda whole: whole[: int(0.999 * len(whole))],
    "a flipped byte": lambda whole: whole[: len(whole) // 2] + b"\xff" * 2 + whole[len(whole) // 2 + 2 :],
    "no document": lambda whole: without(whole, "agent.json"),
    "no arrays": lambda whole: without(whole, "arrays.safetensors"),
    "garbled arrays": lambda whole: without(whole, "arrays.safetensors", b"nonsense"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_no_agent(saved, damage):
    saved.write_bytes(DAMAGES[damage](saved.read_bytes()))
    with pytest.raises(ValueError, match=r"damaged|no bdpi agent"):
        BDPI.load(saved)


def test_another_algorithm_and_a_missing_file_are_no_agents(saved):
    with pytest.raises(ValueError, match="holds no bdpi agent"):
        BDPI.load(saved.with_name("dqn.zip"))
    with pytest.raises(FileNotFoundError):
        BDPI.load(saved.with_name("nothing.zip"))


def test_an_agent_does_not_fit_into_other_networks(saved):
    with pytest.raises(ValueError, match="active has shape"):
        BDPI.load(saved, n_critics=5)


def test_senseless_parameters_are_refused():
    agent = quick_agent()
    for name, value, message in (
        ("actor.parameters", np.nan, "not finite"),
        ("active", 7, "other numbers than 0 and 1"),
    ):
        state = agent.agent_learner.state_dict()
        state[name][0] = value
        with pytest.raises(RuntimeError, match=message):
            agent.agent_learner.load_state_dict(state)


@pytest.mark.parametrize(
    "changed",
    [
        {"position": np.array([5000, 1])},
        {"rewards": np.full((30, 1), np.nan, np.float32)},
        {"actions": np.zeros((30, 1, 1), np.float32)},
        {"rewards": None},
        {"rewards": np.zeros((29, 1), np.float32)},
        {"masks": np.ones((30, 1, 2), bool), "next_masks": np.ones((30, 1, 1), bool)},
    ],
)
def test_a_senseless_replay_memory_is_refused_and_nothing_changes(saved, changed):
    path, agent = saved.with_name("replay.npz"), quick_agent().learn(20)
    with np.load(path) as file:
        arrays = {**file, **changed}
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    before = {name: array.tobytes() for name, array in agent.replay_buffer.held().items()}
    for load in (agent.load_replay_buffer, agent.replay_buffer.load_npz):
        with pytest.raises(ValueError, match=r"replay\.npz.*"):
            load(path)
    assert {name: array.tobytes() for name, array in agent.replay_buffer.held().items()} == before
    assert agent.replay_buffer.masks is None


def test_a_damaged_or_foreign_replay_memory_is_refused_and_nothing_changes(saved, tmp_path):
    path = saved.with_name("replay.npz")
    agent = quick_agent()
    other = quick_agent(buffer_size=100)
    with pytest.raises(ValueError, match="does not fit"):
        quick_agent(Walk(length=3), "MlpPolicy", buffer_size=20).replay_buffer.load_npz(path)
    other.replay_buffer.load_npz(path)  # a smaller memory that still has room is fine
    assert len(other.replay_buffer) == 30
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(ValueError, match="damaged"):
        agent.replay_buffer.load_npz(path)
    np.savez(tmp_path / "foreign.npz", numbers=np.arange(3))
    with pytest.raises(ValueError, match="not a replay memory"):
        agent.replay_buffer.load_npz(tmp_path / "foreign.npz")
    assert len(agent.replay_buffer) == 0
