"""Same seed, same bits; and a saved agent is the whole agent."""

import pathlib
import zipfile

import numpy as np
import pytest
import torch
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor

from bdpi import BDPI
from small import QUICK, Walk, fingerprint, quick_agent


def test_same_seed_same_bits():
    assert fingerprint(quick_agent(seed=3).learn(80)) == fingerprint(quick_agent(seed=3).learn(80))
    assert fingerprint(quick_agent(seed=3).learn(80)) != fingerprint(quick_agent(seed=4).learn(80))


def test_the_agent_does_not_draw_the_numbers_of_its_environment():
    """With the same seed, a slippery environment and an exploring agent must not throw the same dice."""
    agent = quick_agent(seed=7)
    environment = np.random.default_rng(7).random(1000)  # what Gymnasium gives an environment
    own = agent._generator.random(1000)
    assert not np.isin(own, environment).any()
    assert not np.isin(agent.policy.generator.random(1000), [environment, own]).any()


def test_set_random_seed_starts_all_draws_again():
    agent = quick_agent()
    observations = np.zeros((50, 3), np.float32)
    draws = []
    for _ in range(2):
        agent.set_random_seed(7)
        draws.append((agent.predict(observations)[0], [agent.act(observation) for observation in observations]))
    np.testing.assert_array_equal(draws[0], draws[1])


@pytest.mark.parametrize("learner", ["native", "torch"])
def test_evaluation_in_the_middle_of_training_changes_nothing(learner):
    class Evaluate(BaseCallback):
        def _on_step(self) -> bool:
            if self.num_timesteps % 10 == 0:
                evaluate_policy(self.model, Monitor(Walk()), n_eval_episodes=2, deterministic=False)
                np.random.rand()  # noqa: NPY002  # even somebody else who uses the global generators
                torch.rand(1)
            return True

    quiet = quick_agent(learner=learner).learn(60)
    watched = quick_agent(learner=learner).learn(60, callback=Evaluate())
    assert fingerprint(quiet) == fingerprint(watched)
    np.testing.assert_array_equal(
        quiet.replay_buffer.transitions().actions, watched.replay_buffer.transitions().actions
    )


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_do_not_change_an_agent(threads):
    assert fingerprint(quick_agent(n_threads=threads).learn(50)) == fingerprint(quick_agent(n_threads=1).learn(50))


@pytest.mark.parametrize("learner", ["native", "torch"])
def test_a_loaded_agent_learns_on_as_the_saved_one_would_have(learner, tmp_path):
    """Both networks of each critic with their roles, moments, counters, generators: the next epochs are the same."""
    agent = quick_agent(learner=learner, critic_iterations=3)
    agent.learn(41)  # an odd number of epochs of an odd number of iterations: roles are exchanged
    agent.save(tmp_path / "agent.zip")
    agent.replay_buffer.save_npz(tmp_path / "replay.npz")
    loaded = BDPI.load(tmp_path / "agent.zip", env=Walk())
    loaded.replay_buffer.load_npz(tmp_path / "replay.npz")
    assert fingerprint(loaded) == fingerprint(agent)
    assert loaded.num_timesteps == 41
    assert loaded._n_updates == agent._n_updates
    loaded.set_logger(agent.logger)
    for model in (agent, loaded):
        model.train(gradient_steps=5, batch_size=16)
    assert fingerprint(loaded) == fingerprint(agent)
    loaded.learn(10, reset_num_timesteps=False)
    assert loaded.num_timesteps == 51


def test_loading_does_not_rescale_or_repeat_anything(tmp_path):
    agent = quick_agent(train_freq=4, gradient_steps=2).learn(40)
    path = tmp_path / "agent.zip"
    for _ in range(3):
        agent.save(path)
        agent = BDPI.load(path, env=Walk())
    assert agent.train_freq.frequency == 4
    assert agent.gradient_steps == 2
    assert agent.replay_buffer.buffer_size == QUICK["buffer_size"]
    assert agent.hyperparameters().learning_rate == 1e-4


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


def test_an_agent_can_be_loaded_for_prediction_only(tmp_path):
    agent = quick_agent().learn(40)
    agent.save(tmp_path / "agent")
    loaded = BDPI.load(tmp_path / "agent")
    observations = np.random.default_rng(0).uniform(-1, 1, (50, 3)).astype(np.float32)
    np.testing.assert_array_equal(
        loaded.predict(observations, deterministic=True)[0], agent.predict(observations, deterministic=True)[0]
    )
    np.testing.assert_array_equal(loaded.policy.probabilities(observations), agent.policy.probabilities(observations))


def test_get_and_set_parameters():
    first, second = quick_agent(seed=1).learn(40), quick_agent(seed=2)
    second.set_parameters(first.get_parameters())
    assert fingerprint(first) == fingerprint(second)


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
    return tmp_path / "agent.zip"


def test_text_is_not_an_agent(tmp_path):
    path = tmp_path / "agent.zip"
    path.write_text("hello")
    with pytest.raises(ValueError, match=r"not a saved agent, or it is damaged.*take another copy"):
        BDPI.load(path)


def test_another_algorithm_is_not_an_agent(tmp_path):
    DQN("MlpPolicy", "CartPole-v1", buffer_size=10).save(tmp_path / "dqn.zip")
    with pytest.raises(ValueError, match="holds no bdpi agent"):
        BDPI.load(tmp_path / "dqn.zip")


@pytest.mark.parametrize("share", [0.3, 0.9, 0.999])
def test_a_truncated_file_is_damaged(saved, share):
    saved.write_bytes(saved.read_bytes()[: int(share * saved.stat().st_size)])
    with pytest.raises(ValueError, match="damaged"):
        BDPI.load(saved)


def test_a_flipped_byte_is_noticed(saved):
    content = bytearray(saved.read_bytes())
    content[len(content) // 2] ^= 0xFF
    saved.write_bytes(content)
    with pytest.raises(ValueError, match="damaged"):
        BDPI.load(saved)


def test_a_missing_file_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError):
        BDPI.load(tmp_path / "nothing.zip")


def rewrite(path: pathlib.Path, leave_out: str | None = None, **replaced: bytes) -> None:
    """The same archive without a part, or with other contents."""
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist() if name != leave_out}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {**parts, **replaced}.items():
            archive.writestr(name, content)


@pytest.mark.parametrize("part", ["agent.json", "arrays.safetensors"])
def test_a_missing_part_is_named(saved, part):
    rewrite(saved, leave_out=part)
    with pytest.raises(ValueError, match=r"holds no bdpi agent|is damaged"):
        BDPI.load(saved)


def test_garbled_parts_are_damaged(saved):
    rewrite(saved, **{"arrays.safetensors": b"nonsense"})
    with pytest.raises(ValueError, match="damaged"):
        BDPI.load(saved)


def test_an_agent_does_not_fit_into_other_networks(saved):
    with pytest.raises(ValueError, match=r"active has shape \(3,\), expected \(5,\)"):
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


def test_stochastic_predictions_go_on_where_they_were(saved):
    agent = quick_agent().learn(30)
    agent.predict(np.zeros((5, 3), np.float32))
    agent.save(saved)
    loaded = BDPI.load(saved)
    observations = np.zeros((200, 3), np.float32)
    np.testing.assert_array_equal(loaded.predict(observations)[0], agent.predict(observations)[0])


def replay_with(path: pathlib.Path, **changed: np.ndarray) -> pathlib.Path:
    with np.load(path) as file:
        arrays = {**file, **changed}
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"position": np.array([5000, 1])}, "ends at position 5000"),
        ({"rewards": np.full((30, 1), np.nan, np.float32)}, "rewards holds numbers that are not finite"),
        ({"actions": np.zeros((30, 1, 1), np.float32)}, "actions is float32"),
    ],
)
def test_a_senseless_replay_memory_is_refused(saved, changed, message):
    with pytest.raises(ValueError, match=message):
        quick_agent().replay_buffer.load_npz(replay_with(saved.with_name("replay.npz"), **changed))


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
