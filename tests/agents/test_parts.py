"""The parts of an agent, each by itself, and its constructor."""

import inspect

import numpy as np
import pytest
from gymnasium import spaces

from bdpi.agents import ABCDQN, AGENTS, BDPI, ActorMimic, BootstrappedDQN, Ensemble
from bdpi.agents.actions import draw
from bdpi.agents.agent_file import declared
from bdpi.agents.arguments import DEFAULTS, Settings
from bdpi.agents.buffers import TransitionBuffer
from bdpi.agents.collector import Collector, EpisodeRecord
from bdpi.agents.journal import Journal
from small import Walk

BOX, TWO = spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(2)
SEEN, NEXT = np.array([[0.0, 1.0]], np.float32), np.array([[0.5, -1.0]], np.float32)


def new_collector() -> Collector:
    return Collector(TransitionBuffer(10, BOX, TWO), BOX, TWO, n_envs=1)


def collect(collector: Collector, reward: float, done: bool, info: dict, new_obs: np.ndarray = NEXT) -> int:
    rewards, dones, infos = np.array([reward], np.float32), np.array([done]), [info]
    collector.check(new_obs, rewards, dones, infos, [{}], step=1)
    number = collector.store(SEEN, np.array([0]), new_obs, rewards, dones, infos)
    collector.stepped(dones, infos, [{}])
    return number


def test_a_collector_stores_what_was_executed_and_where_it_led():
    collector = new_collector()
    last = np.array([0.25, 0.25], np.float32)
    collect(collector, 1.0, True, {"executed_action": 1, "terminal_observation": last, "TimeLimit.truncated": False})
    held = collector.memory.transitions()
    assert (held.actions.tolist(), held.rewards.tolist(), held.discounts.tolist()) == ([1], [1.0], [0.0])
    np.testing.assert_array_equal(held.next_observations[0], last)
    assert held.masks is None


def test_a_collector_keeps_masks_of_states():
    collector = new_collector()
    collector.reset([{"action_mask": [1, 0]}], step=0)
    collect(collector, 0.0, False, {"action_mask": [0, 1]})
    held = collector.memory.transitions()
    assert (held.masks.tolist(), held.next_masks.tolist()) == ([[True, False]], [[False, True]])
    assert collector.masks.tolist() == [[False, True]]


@pytest.mark.parametrize(
    ("reward", "info", "new_obs"),
    [
        (np.nan, {}, NEXT),
        (0.0, {}, np.array([[np.inf, 0.0]], np.float32)),
        (0.0, {"action_mask": [0, 0]}, NEXT),
        (0.0, {"executed_action": 2}, NEXT),
        (0.0, {"discount": 2.0}, NEXT),
    ],
)
def test_a_collector_refuses_what_cannot_be_learned_from(reward, info, new_obs):
    collector = new_collector()
    with pytest.raises(ValueError, match="environment 0 at step 1"):
        collect(collector, reward, False, info, new_obs)
    assert len(collector.memory) == 0


def test_a_collector_writes_the_journal_first_and_the_memory_when_it_may(tmp_path):
    collector, waiting = new_collector(), []
    collector.open_journal(tmp_path / "journal.sqlite", 0, None)
    collector.defer = waiting.append
    assert collect(collector, 2.0, False, {}) == 1
    assert len(collector.memory) == 0
    waiting[0]()
    assert len(collector.memory) == 1
    collector.journal.close()
    with Journal(tmp_path / "journal.sqlite") as journal:
        assert [step.reward for step in journal.steps()] == [2.0]


def test_an_episode_record_knows_returns_and_the_longest_episode():
    record = EpisodeRecord(2)
    for done in (False, False, True):
        record.add([1.0, 0.5], [done, False], [{}, {}])
    assert (record.first, record.count, record.steps_without_end) == ([3.0], 1, 3)


def test_training_actions_are_drawn_from_the_actor_within_masks():
    agent = BDPI("MlpPolicy", Walk(), seed=0, n_critics=1, persistence=1)
    seen, masks = np.zeros((200, 3), np.float32), np.array([[True, False]] * 200)
    picked = agent.actions.pick(agent.agent_learner, seen, None, np.random.default_rng(1))
    np.testing.assert_array_equal(picked, draw(agent.actions.drawn_by, np.random.default_rng(1)))
    np.testing.assert_allclose(agent.actions.drawn_by, agent.policy.probabilities(seen), rtol=1e-6)
    assert set(picked.tolist()) == {0, 1}
    within = agent.actions.pick(agent.agent_learner, seen, masks, np.random.default_rng(1))
    assert set(within.tolist()) == {0}
    np.testing.assert_array_equal(agent.actions.drawn_by[:, 1], 0)


def test_critics_are_drawn_for_episodes_and_followed_greedily():
    agent = ABCDQN("MlpPolicy", Walk(), seed=0, n_critics=8)
    seen = np.zeros((1, 3), np.float32)
    for episode in range(5):
        agent.actions.begin_episodes(np.array([0]), np.random.default_rng(episode))
        q = agent.agent_learner.q_values(seen)[agent.actions.followed[0], 0]
        assert agent.actions.pick(agent.agent_learner, seen, None, np.random.default_rng(1)).tolist() == [q.argmax()]


# -- constructors


@pytest.mark.parametrize("agent_class", AGENTS.values())
def test_constructors_show_all_arguments(agent_class):
    shown = inspect.signature(agent_class.__init__).parameters
    assert {"policy", "env", "learning_rate", "gamma", "n_critics", "critic_iterations", "seed"} <= set(shown)
    assert all(each.kind is not each.VAR_KEYWORD for each in shown.values())
    assert declared(agent_class).keys() >= {"gamma", "n_critics", "num_timesteps", "_generator"}


def test_settings_are_the_arguments_of_the_constructor():
    shown = inspect.signature(Ensemble.__init__).parameters
    assert Settings.__annotations__.keys() == DEFAULTS.keys()
    assert {name: shown[name].default for name in DEFAULTS} == DEFAULTS
    assert set(shown) - set(DEFAULTS) == {"self", "policy", "env", "learning_rate"}


@pytest.mark.parametrize("agent_class", AGENTS.values())
def test_a_typo_is_answered_with_the_nearest_name(agent_class, tmp_path):
    with pytest.raises(TypeError, match="did you mean n_critics"):
        agent_class("MlpPolicy", "FrozenLake-v1", n_critcs=4)
    agent_class("MlpPolicy", "FrozenLake-v1", n_critics=1).save(tmp_path / "agent")
    with pytest.raises(ValueError, match="did you mean learning_rate"):
        agent_class.load(tmp_path / "agent", learning_rat=0.1)


def test_an_argument_that_would_get_lost_is_named_before_anything_is_learned():
    class Forgetful(BDPI):
        def __init__(self, policy, env, learning_rate=1e-4, *, haste=1.0, **settings):
            self.my_haste = haste
            super().__init__(policy, env, learning_rate, **settings)

    with pytest.raises(ValueError, match="argument haste"):
        Forgetful("MlpPolicy", Walk(), haste=2.0).learn(10)


@pytest.mark.parametrize("agent_class", [BDPI, ActorMimic, BootstrappedDQN])
def test_help_explains_all_arguments(agent_class):
    beside = {"self", "_init_setup_model"}
    names = inspect.signature(agent_class.__init__).parameters.keys() - beside
    assert {name for name in names if f":param {name}:" not in agent_class.__doc__} == set()
    assert ":param buffer_size: how many transitions are remembered." in agent_class.__doc__


def test_a_new_argument_and_a_declared_attribute_are_saved(tmp_path):
    class Curious(BDPI):
        saved = {"visits": int}  # noqa: RUF012

        def __init__(self, *args, curiosity: float = 0.5, **settings):
            self.curiosity, self.visits, self.thoughts = curiosity, 0, 0
            super().__init__(*args, **settings)

    agent = Curious("MlpPolicy", Walk(), curiosity=0.75, n_critics=1)
    agent.visits = agent.thoughts = 3
    agent.save(tmp_path / "agent")
    loaded = Curious.load(tmp_path / "agent")
    assert (loaded.curiosity, loaded.visits, loaded.thoughts) == (0.75, 3, 0)
