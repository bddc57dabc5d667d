"""What every agent promises, whatever its rule: one suite for all of them."""

import contextlib
import re
import warnings
from dataclasses import dataclass

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecNormalize

import bdpi
from bdpi.agents import ABCDQN, AGENTS, BDPI, ActorMimic, BootstrappedDQN, Ensemble, TabularBDPI
from bdpi.learner.rules import Imitation
from small import QUICK, Walk, fingerprint

STATES = spaces.Discrete(6, start=2)


@pytest.fixture(params=AGENTS.values(), ids=AGENTS)
def agent_class(request) -> type[Ensemble]:
    return request.param


def make(agent_class, env=None, seed=0, **arguments) -> Ensemble:
    return agent_class("MlpPolicy", env or Walk(STATES), seed=seed, **{**QUICK, "learning_rate": 1e-3, **arguments})


def test_the_same_seed_gives_the_same_agent_which_learns_and_acts(agent_class):
    first, second, other, new = (make(agent_class, seed=seed) for seed in (3, 3, 4, 3))
    for agent in (first, second, other):
        agent.learn(60)
    assert fingerprint(first) == fingerprint(second) != fingerprint(new)
    np.testing.assert_array_equal(first.replay_buffer.transitions().actions, second.replay_buffer.transitions().actions)
    assert fingerprint(first) != fingerprint(other)
    assert first.learner_name == ("tabular" if agent_class is TabularBDPI else "native")
    assert first.predict(np.array([3]))[0] in (0, 1)
    assert evaluate_policy(first, Monitor(Walk(STATES)), n_eval_episodes=2, warn=False)[0] >= 0


def test_learns_to_prefer_the_rewarded_action(agent_class):
    """Episodes of one step, in which 'right' is worth 1 and 'left' nothing: the policy ends up on 'right'."""
    agent = make(agent_class, Walk(STATES, length=1), batch_size=32, fit_steps=10, learning_rate=0.01).learn(400)
    probabilities = agent.policy.probabilities(np.arange(2, 8))
    assert probabilities[:, 1].min() > 0.6
    assert agent.predict(np.arange(2, 8), deterministic=True)[0].tolist() == [1] * 6


def test_evaluation_and_draws_of_others_change_nothing(agent_class):
    class Others(BaseCallback):
        def _on_step(self) -> bool:
            np.random.rand()  # noqa: NPY002
            torch.rand(1)
            return True

    watched = make(agent_class)
    evaluation = EvalCallback(Monitor(Walk(STATES)), eval_freq=7, n_eval_episodes=2, deterministic=False, verbose=0)
    watched.learn(60, callback=[evaluation, Others()])
    quiet = make(agent_class).learn(60)
    assert fingerprint(watched) == fingerprint(quiet)
    taken = (agent.replay_buffer.transitions().actions for agent in (watched, quiet))
    np.testing.assert_array_equal(*taken)


@pytest.mark.parametrize("raises", [False, True])
def test_a_callback_that_ends_training_loses_no_transition(agent_class, raises):
    class EndAt42(BaseCallback):
        def _on_step(self) -> bool:
            if raises and self.num_timesteps == 42:
                raise KeyboardInterrupt
            return self.num_timesteps < 42

    agent = make(agent_class, make_vec_env(lambda: Walk(STATES), n_envs=3))
    with pytest.raises(KeyboardInterrupt) if raises else contextlib.nullcontext():
        agent.learn(100, callback=EndAt42())
    assert len(agent.replay_buffer) == 42


def test_the_executed_action_is_the_one_that_is_remembered(agent_class):
    agent = make(agent_class, Walk(STATES, start=3, says=lambda env: {"executed_action": 4})).learn(30)
    assert np.all(agent.replay_buffer.transitions().actions == 1)


@pytest.mark.parametrize("kind", ["box", "multidiscrete", "image", "dict"])
def test_other_observations(agent_class, kind):
    from test_run import POLICIES, SPACES

    env = Walk(SPACES[kind])
    policy = POLICIES.get(kind, "MlpPolicy")
    if agent_class is TabularBDPI:
        with pytest.raises(ValueError, match="Discrete observations"):
            agent_class(policy, env)
        return
    agent = agent_class(policy, env, seed=0, **{**QUICK, "n_critics": 2}).learn(24)
    assert agent.predict(env.reset()[0])[0] in (0, 1)


def test_asymmetric_networks(agent_class):
    agent = make(agent_class, policy_kwargs={"net_arch": {"pi": [5], "qf": [9, 7]}}).learn(40)
    state = agent.agent_learner.state_dict()
    if agent_class is not TabularBDPI:
        assert state["critics.parameters"].shape[-1] == (6 + 1) * 9 + (9 + 1) * 7 + (7 + 1) * 2
    if agent_class in (BDPI, ActorMimic):
        assert state["actor.parameters"].shape == ((6 + 1) * 5 + (5 + 1) * 2,)


def test_a_discount_of_its_own_is_remembered_with_a_transition(agent_class):
    every_other_step_is_free = Walk(STATES, length=4, says=lambda env: {"discount": 1.0} if env.time % 2 else {})
    agent = make(agent_class, every_other_step_is_free, gamma=0.9).learn(20)
    np.testing.assert_allclose(agent.replay_buffer.transitions().discounts[:8], [1, 0.9, 1, 0, 1, 0.9, 1, 0])


# -- action masks --------------------------------------------------------------------------------------------------


class Maze(gym.Env):
    """Four actions; a random one or two are allowed in each state, and any other ends the episode with -10."""

    observation_space = spaces.Discrete(8)
    action_space = spaces.Discrete(4, start=1)

    def _arrive(self) -> dict:
        self.state = int(self.np_random.integers(8))
        allowed = np.zeros(4, dtype=np.int8)
        allowed[self.state % 4] = allowed[(self.state // 4) * 2] = 1
        self.allowed = allowed
        return {"action_mask": allowed}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        info = self._arrive()
        return self.state, info

    def step(self, action):
        if not self.allowed[action - 1]:
            return self.state, -10.0, True, False, {"illegal": True}
        self.time += 1
        reward = float(action - 1)
        info = self._arrive()
        return self.state, reward, self.time >= 12, False, info


class NoIllegalAction(BaseCallback):
    def _on_step(self) -> bool:
        assert not any(info.get("illegal") for info in self.locals["infos"])
        return True


@pytest.mark.parametrize("n_envs", [1, 3])
def test_a_masked_action_is_never_taken(agent_class, n_envs):
    agent = make(agent_class, make_vec_env(Maze, n_envs=n_envs, seed=0))
    agent.learn(240, callback=NoIllegalAction())
    data = agent.replay_buffer.transitions()
    assert data.masks[np.arange(len(data.actions)), data.actions].all()
    assert not data.masks.all()
    for allowed in range(4):
        mask = np.eye(4, dtype=bool)[allowed]
        assert agent.predict(np.array([1]), action_masks=mask)[0] == allowed + 1
        assert agent.predict(np.array([1]), deterministic=True, action_masks=mask)[0] == allowed + 1


def test_masked_actions_take_no_part_in_targets(agent_class):
    """Action 1 would be worth the most by far, but is never allowed in any state: no target may look at it."""

    tempting = Walk(STATES, pays=lambda env, action: 0.0, says=lambda env: {"action_mask": np.array([1, 0])})
    agent = make(agent_class, tempting, critic_step_size=1.0, learning_rate=0.01)
    if agent_class is TabularBDPI:
        agent.agent_learner.learner.critics[..., 1] = 100.0
    else:
        state = agent.agent_learner.learner.state
        state.critics.parameters[..., -1] = 100.0  # the output bias of the last action
    agent.learn(100)
    q = agent.agent_learner.q_values(np.arange(6))
    assert q[:, :, 0].max() < 5
    assert agent.predict(np.array([3]), action_masks=[1, 0])[0] == 0


def test_masks_belong_to_their_states_also_in_a_replay_file(agent_class, tmp_path):
    """The mask of Maze follows from the state, so both columns can be computed from the observations."""
    agent, other = (make(agent_class, make_vec_env(Maze, n_envs=2, seed=0)) for _ in range(2))
    agent.learn(100).replay_buffer.save_npz(tmp_path / "replay.npz")
    other.replay_buffer.load_npz(tmp_path / "replay.npz")
    for data in (agent.replay_buffer.transitions(), other.replay_buffer.transitions()):
        for observations, masks, alive in (
            (data.observations, data.masks, data.discounts >= 0),
            (data.next_observations, data.next_masks, data.discounts > 0),
        ):
            states = np.asarray(observations).reshape(-1)
            expected = np.zeros((len(states), 4), bool)
            expected[np.arange(len(states)), states % 4] = expected[np.arange(len(states)), states // 4 * 2] = True
            np.testing.assert_array_equal(masks[alive], expected[alive])


def sometimes(says_so: bool) -> Walk:
    """Only action 0 is allowed in the first 30 steps, and everything later; which it may say, or leave out.

    :param says_so: there is a mask that allows everything
    """

    def mask(env: Walk) -> dict:
        if env.steps < 30:
            return {"action_mask": np.array([1, 0])}
        return {"action_mask": np.array([1, 1])} if says_so else {}

    return Walk(STATES, says=mask)


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.filterwarnings("error::RuntimeWarning")  # masks may end in the middle of an episode
def test_a_step_without_a_mask_allows_everything_also_where_a_masked_one_was(agent_class, n_envs):
    """The memory of 48 transitions is overwritten several times."""
    silent, explicit = (
        make(agent_class, make_vec_env(lambda: sometimes(says_so), n_envs=n_envs, seed=0), buffer_size=48).learn(240)  # noqa: B023
        for says_so in (False, True)
    )
    data = silent.replay_buffer.transitions()
    assert data.masks.all()
    assert data.next_masks.all()
    assert fingerprint(silent) == fingerprint(explicit)


def lone(at_reset: bool, at_step: bool, length: int = 7) -> Walk:
    """Gives masks at reset, or at steps."""
    mask = {"action_mask": np.array([1, 0])}
    return Walk(STATES, length, says=lambda env: dict(mask) if (at_step if env.time else at_reset) else {})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((True, False), "environment 0 gave .* at reset, and none at the step after it"),
        ((False, True), "environment 0 gave .* at a step, and none at the reset before it"),
        ((True, False, 1), None),  # after the last step, there is nothing to choose any more
        ((False, True, 1), "none at the reset"),
        ((True, True), None),
        ((False, False), None),
    ],
)
@pytest.mark.parametrize("n_envs", [1, 2])
def test_masks_at_resets_or_at_steps_only_are_warned_of_once(given, message, n_envs):
    agent = make(BDPI, make_vec_env(lambda: lone(*given), n_envs=n_envs))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        agent.learn(30)
        agent.learn(30)
    found = [str(each.message) for each in caught if "action_mask" in str(each.message)]
    assert len(found) == (message is not None)
    assert message is None or re.search(message, found[0])


class Costly(gym.Env):
    """Action 0 is never allowed; 1 costs 2, 2 costs 1: what was never tried looks best, and must not be chosen."""

    observation_space = spaces.Discrete(3)
    action_space = spaces.Discrete(3)
    info = {"action_mask": np.array([0, 1, 1])}  # noqa: RUF012

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return int(self.np_random.integers(3)), self.info

    def step(self, action):
        self.time += 1
        illegal = action == 0
        reward = -100.0 if illegal else float(action) - 3
        return int(self.np_random.integers(3)), reward, bool(illegal or self.time >= 10), False, self.info


def test_predictions_and_evaluations_keep_to_masks(agent_class):
    agent = make(agent_class, Costly(), learning_rate=0.01, fit_steps=10, n_critics=5, gamma=0.5).learn(400)
    masks = np.tile(Costly.info["action_mask"], (3, 1))
    assert agent.predict(np.arange(3), deterministic=True, action_masks=masks)[0].tolist() == [2, 2, 2]
    returns, lengths = bdpi.evaluate_policy(agent, Costly(), 4, return_episode_rewards=True)
    assert returns == [-10.0] * 4
    assert lengths == [10] * 4
    drawn = bdpi.evaluate_policy(agent, make_vec_env(Costly, n_envs=2), 5, deterministic=False)
    assert -20 <= drawn[0] <= -10
    with pytest.warns(RuntimeWarning, match="predicts without"):
        agent.predict(np.arange(3))


class Turns(gym.Env):
    """Action 0 is allowed in the first step of an episode, action 1 in the second and last one; others cost 100."""

    observation_space = spaces.Discrete(2)
    action_space = spaces.Discrete(2)

    def _info(self) -> dict:
        return {"action_mask": np.eye(2, dtype=int)[self.time % 2]}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return 0, self._info()

    def step(self, action):
        reward = 1.0 if action == self.time else -100.0
        self.time += 1
        over = self.time == 2
        return self.time % 2, reward, over, False, {"action_mask": np.array([0, 1])} if over else self._info()


@pytest.mark.parametrize("n_envs", [1, 2])
@pytest.mark.parametrize("deterministic", [True, False])
def test_evaluations_begin_an_episode_with_the_mask_of_its_reset(n_envs, deterministic):
    """After the last step, the environment reports another mask than at the reset that follows."""
    environments = make_vec_env(Turns, n_envs=n_envs)
    returns = bdpi.evaluate_policy(make(BDPI, Turns()), environments, 6, deterministic, return_episode_rewards=True)
    assert returns == ([2.0] * 6, [2] * 6)


@pytest.mark.parametrize("n_episodes", [0, -1, 2.5])
def test_evaluations_need_an_episode(n_episodes):
    with pytest.raises(ValueError, match="n_eval_episodes"):
        bdpi.evaluate_policy(make(BDPI, Turns()), Turns(), n_episodes)


@pytest.mark.parametrize("masks", [[0, 0], [1, 1, 1], [[1, 1], [1, 1]], [2, -1]])
def test_senseless_masks_of_predictions_are_named(agent_class, masks):
    with pytest.raises(ValueError, match="action_masks"):
        make(agent_class).predict(np.array([3]), action_masks=masks)


@pytest.mark.parametrize(
    ("mask", "message"),
    [([1, 1, 0], "at step 5"), ([0, 0], "at step 5 allows no"), ("both", "zeros and ones"), ([1, 2], "zeros and ones")],
)
def test_senseless_masks_are_named(mask, message):
    with pytest.raises(ValueError, match=message):
        make(BDPI, Walk(STATES, says=lambda env: {"action_mask": mask} if env.time == 5 else {})).learn(20)


# -- what is special ------------------------------------------------------------------------------------------------


def test_critics_are_followed_for_an_episode_by_each_environment_greedily():
    """ABCDQN and Bootstrapped DQN: between two ends of an episode, an environment follows one critic."""
    for agent_class in (ABCDQN, BootstrappedDQN):
        followed = []

        class Watch(BaseCallback):
            def _on_step(self) -> bool:
                followed.append((self.model.actions.followed.copy(), self.locals["dones"].copy()))  # noqa: B023
                return True

        env = make_vec_env(lambda: Walk(STATES), n_envs=4)
        agent = make(agent_class, env, n_critics=8, batch_size=200, buffer_size=1000)
        agent.learn(400, callback=Watch())  # there is no full batch until step 200: the critics stand still
        critics, dones = (np.array(column) for column in zip(*followed, strict=True))
        changed = critics[1:] != critics[:-1]
        assert not (changed & ~dones[1:]).any()
        assert changed.any()
        assert len(np.unique(critics)) == 8
        data = agent.replay_buffer.transitions()
        # greedy: in a state, a given critic has only one answer while nothing is learned
        rows = zip(critics[:40].ravel(), data.observations[4:164, 0], data.actions[4:164], strict=True)
        answers = {tuple(map(int, row)) for row in rows}
        assert len({answer[:2] for answer in answers}) == len(answers) > 20


def test_without_an_actor_predictions_follow_the_votes_and_drawn_ones_a_critic_for_an_episode():
    agent = make(ABCDQN, n_critics=7).learn(60)
    assert agent.policy.actor is None
    observations, states = np.arange(2, 8), np.arange(6)
    greedy = agent.agent_learner.q_values(states).argmax(axis=2)
    np.testing.assert_allclose(agent.policy.probabilities(observations)[:, 1], greedy.mean(axis=0), atol=1e-6)
    actions, state = agent.predict(observations)
    followed = state[0]
    np.testing.assert_array_equal(actions, greedy[followed, states])
    again, state = agent.predict(observations, state, np.zeros(6, bool))
    np.testing.assert_array_equal(again, actions)
    np.testing.assert_array_equal(state[0], followed)
    seen = {tuple(agent.predict(observations, state, np.array([True] * 3 + [False] * 3))[1][0]) for _ in range(20)}
    assert len(seen) > 1
    assert {one[3:] for one in seen} == {tuple(followed[3:])}


@pytest.mark.parametrize("n_envs", [1, 2])
def test_state_numbers_beside_normalised_rewards(agent_class, n_envs):
    env = VecNormalize(make_vec_env(lambda: Walk(STATES), n_envs=n_envs), norm_obs=False)
    agent = make(agent_class, env).learn(40)
    data = agent.replay_buffer.transitions()
    assert set(np.unique(data.rewards)) == {0.0, 1.0}
    assert set(np.unique(data.next_observations)) <= set(range(6))


def test_bootstrapped_dqn_has_the_papers_defaults_and_may_have_priors(tmp_path):
    agent = BootstrappedDQN("MlpPolicy", Walk())
    assert (agent.n_critics, agent.critics_per_step, agent.critic_iterations) == (16, 1, 1)
    assert (agent.critic_step_size, agent.prior_scale) == (1.0, 0.0)
    deviations = []
    for scale in (0.0, 3.0):
        agents = [make(BootstrappedDQN, prior_scale=scale, learner=which).learn(50) for which in ("torch", "native")]
        agents[1].save(tmp_path / "agent")
        loaded = BootstrappedDQN.load(tmp_path / "agent")
        torchs, natives, saved = (each.agent_learner.q_values(np.arange(6)) for each in (*agents, loaded))
        np.testing.assert_allclose(torchs, natives, atol=1e-4)
        np.testing.assert_array_equal(saved, natives)
        deviations.append(natives.std(axis=0).mean())
    assert deviations[1] > 2 * deviations[0]  # random functions differ between critics
    with pytest.raises(ValueError, match="prior_scale"):
        BootstrappedDQN("MlpPolicy", Walk(), prior_scale=-1)


def test_actor_mimic_softmax_stays_more_random_than_greedy():
    entropies = []
    for temperature in (0.0, 5.0):
        agent = make(ActorMimic, temperature=temperature, learning_rate=0.01, fit_steps=10).learn(150)
        p = agent.policy.probabilities(np.arange(2, 8))
        entropies.append(float(-(p * np.log(p)).sum(axis=1).mean()))
    assert entropies[0] < 0.3 < entropies[1]
    q = torch.tensor([[1e9, -1e9, float("-inf")], [-1e30, 1e30, 0.0]])
    assert Imitation(1e-30).targets(torch.full((2, 3), 1 / 3), q).tolist() == [[1, 0, 0], [0, 1, 0]]


@dataclass(frozen=True)
class Cautious:
    """A rule from outside the package: halfway between the policy and the uniform one over the two best actions."""

    loss = "squared_error"
    native = None

    def targets(self, policy: torch.Tensor, q_values: torch.Tensor) -> torch.Tensor:
        best = q_values.topk(2, dim=1).indices
        uniform = torch.zeros_like(policy).scatter_(1, best, 0.5)
        return 0.5 * policy + 0.5 * uniform


def following(rule) -> type[Ensemble]:
    """An agent of this rule."""
    return type("Agent", (Ensemble,), {"actor_rule": lambda self: rule()})


def saying(targets):
    """A rule with such targets."""
    return type("Saying", (Cautious,), {"targets": lambda self, policy, q: targets(policy, q)})


def naming(counterpart):
    """A rule that names this C++ rule."""
    return lambda: type("Naming", (Cautious,), {"native": counterpart})()


class Plain:
    """Works, but no two of them are equal."""

    loss, native, targets = Cautious.loss, Cautious.native, Cautious.targets


def dividing(policy, q):
    """Forgets that actions that are not allowed have a Q-value of minus infinity."""
    weighted = policy * (q - q.amin(dim=1, keepdim=True))
    return weighted / weighted.sum(dim=1, keepdim=True)


def late(policy, q):
    """Right where policies and Q-values are small, which is all that can be tried before."""
    return policy if len(policy) < 10 else policy * float("nan")


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (Plain, "frozen dataclass"),
        (dataclass(type("Thawed", (Plain,), {})), "frozen dataclass"),  # has no hash
        (type("Incomplete", (), {"targets": Cautious.targets}), "Incomplete has no loss and no native"),
        (type("Odd", (Cautious,), {"loss": "kl"}), "loss of the actor rule Odd must be one of"),
        (saying(lambda policy, q: q), r"must give probabilities, .* got numbers from -\d"),
        (saying(lambda policy, q: policy * float("nan")), "must give probabilities, .* got numbers from nan"),
        (saying(lambda policy, q: policy[:, :1]), r"shape \(n, n_actions\), \(2, 4\) here: got .* \(2, 1\)"),
        (saying(dividing), "actor's loss is nan at step 16.* not allowed are minus infinity"),
        (naming(("nosuch", 1.0)), "no actor rule 'nosuch'"),
        (naming(("imitation", 0.0)), "'imitation', 0.0.*which has other targets"),
        (naming(("conservative", 0.5)), "'conservative', 0.5.*which has other targets"),
        *(
            (naming(counterpart), "native of the actor rule Naming must be the name")
            for counterpart in ("conservative", ("conservative",), ("conservative", "x"), 5, ("imitation", np.nan))
        ),
    ],
)
def test_mistakes_of_a_rule_are_named(rule, message):
    with pytest.raises(ValueError, match=message):
        make(following(rule), Maze()).learn(30)


def test_what_is_wrong_without_masks_is_not_blamed_on_masks():
    with pytest.raises(ValueError, match=r"gives targets that are no probabilities\.$"):
        make(following(saying(late))).learn(30)


def test_a_new_rule_is_one_small_class_and_may_name_a_counterpart_that_says_the_same():
    class Half(Cautious):
        native = ("conservative", 0.5)

        def targets(self, policy, q_values):
            return 0.5 * policy + 0.5 * torch.nn.functional.one_hot(q_values.argmax(dim=1), policy.shape[1])

    assert make(following(Half), Maze()).learn(30).learner_name == "native"
    agent = make(following(Cautious), Maze()).learn(60)
    assert agent.learner_name == "torch"  # it names no C++ counterpart
    data = agent.replay_buffer.transitions()
    assert data.masks[np.arange(len(data.actions)), data.actions].all()
    with pytest.raises(ValueError, match="counterpart"):
        make(following(Cautious), Maze(), learner="native")


@pytest.mark.parametrize("learner", ["native", "torch"])
def test_the_lowest_temperature_is_as_good_as_none_and_lower_ones_are_refused(learner):
    make(ActorMimic, temperature=1e-30, learner=learner).learn(40)
    for temperature in (1e-45, -0.1):
        with pytest.raises(ValueError, match="temperature"):
            make(ActorMimic, temperature=temperature, learner=learner)


@pytest.mark.parametrize("net_arch", [[np.int64(4)], {"pi": (np.int32(4),), "qf": [np.int64(5)]}])
@pytest.mark.parametrize("learner", ["native", "torch"])
def test_sizes_of_networks_may_be_numbers_of_numpy(net_arch, learner, tmp_path):
    agent = make(BDPI, policy_kwargs={"net_arch": net_arch}, learner=learner).learn(20)
    agent.save(tmp_path / "agent")
    assert BDPI.load(tmp_path / "agent").policy.actor_arch == [4]


@pytest.mark.parametrize("name", ["learner", "precision"])
def test_learners_and_precisions_that_there_are_not_are_named(agent_class, name):
    with pytest.raises(ValueError, match=f"{name} must be .* got 'nonsense'"):
        make(agent_class, **{name: "nonsense"})


def test_tables_say_what_has_no_effect_on_them():
    with pytest.warns(RuntimeWarning, match="no effect: learner"):
        make(TabularBDPI, learner="native", precision="bfloat16", policy_kwargs={"net_arch": [3]})
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        make(TabularBDPI)
    with pytest.raises(ValueError, match="use BDPI"):
        make(TabularBDPI, Walk())


@pytest.mark.parametrize("wrong", [ABCDQN, BootstrappedDQN])
def test_a_state_of_other_observations_is_refused(wrong):
    agent = make(wrong)
    state = agent.predict(np.arange(2, 5))[1]
    for observations in (np.arange(2, 4), np.arange(2, 8), 3):
        with pytest.raises(ValueError, match="and has 3 for"):
            agent.predict(observations, state)
    single = agent.predict(3)[1]
    with pytest.raises(ValueError, match="and has 1 for 3 of them"):
        agent.predict(np.arange(2, 5), single)
    agent.predict(4, single)


@pytest.mark.parametrize("net_arch", [[-8], {"pi": [8]}, 32, ["a"], [True], [8.0]])
def test_senseless_networks_are_named(net_arch):
    with pytest.raises(ValueError, match="net_arch must be a list"):
        make(BDPI, policy_kwargs={"net_arch": net_arch})
