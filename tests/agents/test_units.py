"""Agents learn the same in any unit."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

import bdpi
from bdpi import ABCDQN, BDPI, PAPER, ActorMimic
from small import QUICK, Walk, fingerprint, quick_agent


class InUnits(gym.Wrapper):
    """CartPole whose observations and rewards are in other units, which its space does not tell."""

    def __init__(self, of_observations: float = 1.0, of_rewards: float = 1.0) -> None:
        super().__init__(gym.make("CartPole-v1"))
        self.factors = np.float32(of_observations), of_rewards
        self.observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)

    def reset(self, **arguments):
        observation, info = self.env.reset(**arguments)
        return observation * self.factors[0], info

    def step(self, action):
        observation, reward, *rest = self.env.step(action)
        return observation * self.factors[0], reward * self.factors[1], *rest


UNITS = [(2.0**12, 1.0), (2.0**-12, 2.0**12), (1.0, 2.0**-12)]


@pytest.mark.parametrize("units", [UNITS[1], *(pytest.param(units, marks=pytest.mark.full) for units in UNITS[::2])])
@pytest.mark.parametrize(
    ("agent_class", "settings"),
    [
        (BDPI, {}),
        (BDPI, {"learner": "torch"}),
        (ABCDQN, {}),
        (ActorMimic, {}),
        (BDPI, {"policy_kwargs": {"net_arch": [24, 16]}}),
    ],
)
def test_an_agent_takes_the_same_actions_in_any_unit(agent_class, settings, units):
    """To the bit, where the units differ by powers of two, which rounding does not see."""
    runs = []
    for of_observations, of_rewards in ((1.0, 1.0), units):
        environment = InUnits(of_observations, of_rewards)
        agent = agent_class("MlpPolicy", environment, seed=1, **{**QUICK, "buffer_size": 500, **settings}).learn(150)
        runs.append((fingerprint(agent), agent.replay_buffer.transitions()))
        np.testing.assert_array_equal(runs[-1][1].rewards, np.full(150, of_rewards, np.float32))  # as they came
    (bits, plain), (other_bits, other) = runs
    assert bits == other_bits
    np.testing.assert_array_equal(plain.actions, other.actions)
    np.testing.assert_array_equal(plain.observations * np.float32(units[0]), other.observations)


def test_the_temperature_is_in_the_unit_of_the_rewards():
    runs = [
        ActorMimic("MlpPolicy", InUnits(1.0, unit), seed=1, temperature=0.5 * unit, **QUICK).learn(100)
        for unit in (1.0, 2.0**6)
    ]
    assert fingerprint(runs[0]) == fingerprint(runs[1])


def test_without_scales_units_matter():
    runs = [BDPI("MlpPolicy", InUnits(unit), seed=1, **{**PAPER, **QUICK}).learn(60) for unit in (1.0, 2.0**6)]
    assert fingerprint(runs[0]) != fingerprint(runs[1])


def test_q_values_and_logs_are_in_the_users_units():
    factor = 2.0**10
    logged, predicted = [], []
    for unit in (1.0, factor):
        agent = BDPI("MlpPolicy", InUnits(1.0, unit), seed=1, **QUICK)
        agent.set_logger(Logger(folder=None, output_formats=[]))
        agent.learn(100)
        agent.train(gradient_steps=1, batch_size=16)
        logged.append([agent.logger.name_to_value[f"train/{name}"] for name in ("mean_q", "critic_loss")])
        predicted.append(agent.agent_learner.q_values(agent.replay_buffer.transitions().observations[:20]))
    np.testing.assert_allclose(predicted[1], predicted[0] * factor, rtol=1e-5)
    np.testing.assert_allclose(logged[1], [logged[0][0] * factor, logged[0][1] * factor**2], rtol=1e-5)


def test_q_values_stay_when_scales_change():
    agent = quick_agent(InUnits(), buffer_size=1000).learn(60)
    observations = agent.replay_buffer.transitions().observations[:20]
    before, scales = agent.agent_learner.q_values(observations), agent.policy.scales
    agent.agent_learner.set_scales(bdpi.learner.scales.scale_returns(scales, np.array([100.0, -3.0]), 5.0))
    assert agent.policy.scales.return_factor != scales.return_factor
    np.testing.assert_allclose(agent.agent_learner.q_values(observations), before, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("learner", ["native", "torch"])
def test_scales_are_saved_and_part_of_the_parameters(tmp_path, learner):
    agent = quick_agent(InUnits(1000.0, 100.0), learner=learner).learn(80)
    observations = agent.replay_buffer.transitions().observations[:50]
    agent.save(tmp_path / "agent.zip")
    other = quick_agent(InUnits(1000.0, 100.0), learner=learner, seed=9)
    other.set_parameters(agent.get_parameters())
    for copy in (BDPI.load(tmp_path / "agent.zip"), other):
        np.testing.assert_array_equal(copy.policy.probabilities(observations), agent.policy.probabilities(observations))
        np.testing.assert_array_equal(
            copy.agent_learner.q_values(observations), agent.agent_learner.q_values(observations)
        )


def test_dict_observations_are_scaled_by_their_parts():
    space = spaces.Dict(
        {
            "far": spaces.Box(0, 5000, (2,), np.float32),
            "near": spaces.Box(0, 0.01, (3,), np.float32),
            "which": spaces.Discrete(3),
        }
    )
    agent = quick_agent(Walk(space), "MultiInputPolicy").learn(40)
    assert agent.policy.scaled_parts == {"far": 2, "near": 3}
    stored = {key: part[:40] for key, part in agent.replay_buffer.transitions().next_observations.items()}
    tensors, _ = agent.policy.obs_to_tensor(stored)
    inputs = agent.policy.preprocess(tensors)
    for key in ("far", "near"):
        assert 0.5 < float(inputs[key].abs().max()) < 3
    assert set(inputs["which"].unique().tolist()) == {0.0, 1.0}


def test_a_normalizer_takes_the_place_of_scales():
    environment = VecNormalize(DummyVecEnv([InUnits]), norm_obs=True, norm_reward=True)
    agent = quick_agent(environment).learn(40)
    np.testing.assert_array_equal(agent.policy.scales.factor, np.ones(4))
    assert agent.policy.scales.return_factor == 1


def test_rewards_have_a_size_from_the_first_that_is_not_zero():
    late = Walk(pays=lambda env, action: 0.0 if env.steps <= 50 else 500.0)
    agent = quick_agent(late, return_size=4.0, rare_rewards=0.0, policy_kwargs={"net_arch": [32]}, fit_steps=20)
    agent.learn(45)
    assert not agent.policy.scales.knows_returns
    agent.learn(10, reset_num_timesteps=False)
    assert agent.policy.scales.knows_returns
    assert agent.policy.scales.return_factor * 500 == pytest.approx(4, rel=0.01)


@pytest.mark.parametrize("is_rare_at_first", [True, False])
def test_ranges_stay_where_rewards_become_rare_or_frequent(is_rare_at_first):
    """Networks see half as much or twice as much of the same range."""
    pays = Walk(pays=lambda env, action: float((env.steps > 40) == is_rare_at_first))
    agent = quick_agent(pays, buffer_size=1000, rare_rewards=0.4)
    found = []
    for steps in (40, 100):
        agent.learn(steps, reset_num_timesteps=False)
        seen = agent.replay_buffer.next_observations_held()
        found.append(np.abs(agent.policy.scales.inputs(seen)).max())
    assert found == pytest.approx([1, 2] if is_rare_at_first else [2, 1], rel=0.05)


def test_demonstrations_count_and_empty_rows_do_not():
    agent = quick_agent(InUnits(), buffer_size=2000)
    teacher = quick_agent(InUnits(500.0), buffer_size=2000).learn(60)
    shown = teacher.replay_buffer.transitions()
    agent.add_demonstrations(
        [
            bdpi.agents.journal.Transition(
                shown.observations[k], int(shown.actions[k]), 1.0, shown.next_observations[k], False, False
            )
            for k in range(60)
        ]
    )
    agent.learn(30)
    seen = agent.policy.scales.inputs(shown.next_observations[:60])
    assert np.abs(seen).max() == pytest.approx(2, abs=0.04)
    held = agent.replay_buffer.next_observations_held()
    assert len(held) == 90


@pytest.mark.parametrize("settings", [{}, {"train_freq": 10}])
def test_scales_follow_what_is_far_from_all_that_was_seen(settings):
    def factor(env: Walk) -> float:
        return 100.0 if env.steps > 120 else 1.0

    widening = Walk(
        seen=lambda env, usual: usual * np.float32(factor(env)), pays=lambda env, action: (action + 0.1) * factor(env)
    )
    agent = quick_agent(widening, buffer_size=1000, **settings).learn(160)
    newest = agent.replay_buffer.transitions().next_observations[121:160]
    assert np.abs(agent.policy.scales.inputs(newest)).max() < 4
    size = agent.return_size * agent.hyperparameters().fit_steps / 20
    assert np.abs(agent.replay_buffer.rewards).max() * agent.policy.scales.return_factor < 4 * size


def test_experience_counts_not_epochs():
    """After many epochs on few transitions, scales still follow what is new."""
    agent = quick_agent(InUnits(), buffer_size=2000).learn(40)
    for _ in range(500):
        agent.learn_once()
    before = agent.policy.scales.factor
    agent.learn(200, reset_num_timesteps=False)
    assert not np.array_equal(agent.policy.scales.factor, before)
    held = agent.replay_buffer.next_observations_held()
    assert np.abs(agent.policy.scales.inputs(held)).max() < 4


def test_a_normalizer_that_comes_later_takes_the_place_of_scales():
    agent = quick_agent(InUnits(1000.0)).learn(40)
    agent.set_env(VecNormalize(DummyVecEnv([InUnits])))
    agent.learn(20, reset_num_timesteps=False)
    np.testing.assert_array_equal(agent.policy.scales.factor, np.ones(4))


def test_a_glitch_is_found():
    """One reading that cannot be."""
    glitch = Walk(seen=lambda env, usual: usual + np.float32(1e6 * (env.steps == 700)))
    agent = quick_agent(glitch, buffer_size=2000, train_freq=20).learn(1200)
    assert "observations-outlying" in [finding.code for finding in agent.health()]


@pytest.mark.parametrize("settings", [{}, PAPER])
def test_units_that_do_not_suit_networks_are_found_where_nothing_scales_them(settings):
    environment = InUnits(5000.0, 100.0)
    agent = BDPI(
        "MlpPolicy", environment, seed=0, **{**settings, **QUICK, "buffer_size": 2000, "train_freq": 20}
    ).learn(1100)
    found = {finding.code for finding in agent.health()} & {"observations-unscaled", "returns-unscaled"}
    assert found == ({"observations-unscaled", "returns-unscaled"} if settings else set())


def test_rules_follow_the_scales_and_what_callbacks_change():
    """A temperature is in the unit of the rewards; callbacks may change it while the agent learns."""
    agent, found = ActorMimic("MlpPolicy", InUnits(), seed=1, temperature=2.0, **QUICK), []
    epoch = agent.agent_learner.learner.epoch

    def noted(transitions, batches, critics, hyperparameters):
        found.append((hyperparameters.actor_rule, agent.actor_rule()))
        return epoch(transitions, batches, critics, hyperparameters)

    def change(*_):
        agent.temperature = 2.0 if agent.num_timesteps < 95 else 4.0
        return True

    agent.agent_learner.learner.epoch = noted
    agent.learn(100, change)
    assert all(used == asked for used, asked in found)
    assert len({used for used, _ in found}) > 2
    (before, _), (after, _) = found[-12], found[-1]
    assert after.temperature == 2 * before.temperature
