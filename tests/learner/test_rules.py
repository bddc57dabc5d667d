"""A rule is one file: a critic rule and an actor rule from outside the package run on every learner."""

from dataclasses import dataclass

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

from bdpi import BDPI
from bdpi.learner import Hyperparameters, native, nvrtc
from bdpi.learner.rules import compiled
from bdpi.learner.tabular import TabularLearner
from worlds import assert_same_state, make_learner, random_batches, random_state, random_transitions

pytestmark = [
    pytest.mark.usefixtures("fused_kernels"),
    pytest.mark.skipif(not native.is_available(), reason="the compiled learner is not installed"),
]


@dataclass(frozen=True)
class Averaging:
    """V(s') is the mean of both opinions about the best action by Q_A."""

    step_size: float = 0.3

    @property
    def native(self) -> tuple[str, float, str]:
        source = """
        RULE float averaging(const float *q, const float *next_a, const float *next_b, int n_actions, int action,
                             float reward, float discount, float step_size) {
            const int best = argmax(next_a, n_actions);
            const float value = 0.5f * (pick(next_a, n_actions, best) + pick(next_b, n_actions, best));
            return step_size * (reward + discount * value - pick(q, n_actions, action));
        }"""
        return "averaging", self.step_size, source

    def change(
        self, q: Tensor, next_a: Tensor, next_b: Tensor, actions: Tensor, rewards: Tensor, discounts: Tensor
    ) -> Tensor:
        best = next_a.argmax(dim=1, keepdim=True)
        value = (next_a.gather(1, best) + next_b.gather(1, best)).squeeze(1) / 2
        return self.step_size * (rewards + discounts * value - q.gather(1, actions[:, None]).squeeze(1))


@dataclass(frozen=True)
class Sharpening:
    """The policy, weighted by exp(Q' / temperature): a step of natural policy gradient."""

    temperature: float = 2.0
    loss: str = "cross_entropy"

    @property
    def native(self) -> tuple[str, float, str]:
        source = """
        RULE void sharpening(const float *policy, const float *q, int n_actions, float temperature, float *target) {
            const float largest = pick(q, n_actions, argmax(q, n_actions));
            float total = 0.0f;
            EACH_ACTION(a) total += target[a] = policy[a] * expf((q[a] - largest) / temperature);
            EACH_ACTION(a) target[a] /= total;
        }"""
        return "sharpening", self.temperature, source

    def targets(self, policy: Tensor, q_values: Tensor) -> Tensor:
        weighted = policy * ((q_values - q_values.amax(dim=1, keepdim=True)) / self.temperature).exp()
        return (weighted / weighted.sum(dim=1, keepdim=True)).to(policy.dtype)


class OtherRules(BDPI):
    def critic_rule(self):
        return Averaging()

    def actor_rule(self):
        return Sharpening()


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kind", ["torch", "native", "fused", "whole"])
def test_rules_from_outside_teach_what_the_reference_learns(kind, masked):
    sizes = [5, 40 if kind == "whole" else 8, 3]
    state, transitions = random_state(sizes, sizes, 2), random_transitions(5, 3, one_hot=False, masked=masked)
    learners = [make_learner(each, state, sizes, sizes) for each in ("reference", kind)]
    hyper = Hyperparameters(2, 2, Averaging(), 1e-3, 1e-3, Sharpening())
    metrics = [each.epoch(transitions, *random_batches(2, 2, 32), hyper) for each in learners]
    assert_same_state(*learners, tolerance=1e-4)
    assert metrics[1].critic_loss == pytest.approx(metrics[0].critic_loss, rel=1e-4)
    assert metrics[1].actor_loss == pytest.approx(metrics[0].actor_loss, rel=1e-4)
    other = make_learner(kind, state, sizes, sizes)
    other.epoch(transitions, *random_batches(2, 2, 32), Hyperparameters(2, 2, learning_rate=1e-3))
    with pytest.raises(AssertionError):
        assert_same_state(learners[0], other, tolerance=1e-3)


def test_rules_from_outside_run_on_tables():
    tables = TabularLearner(6, 3, 2, critics=np.random.default_rng(0).normal(size=(2, 2, 6, 3)))
    tables.epoch(
        random_transitions(6, 3, one_hot=True),
        *random_batches(2, 2, 32),
        Hyperparameters(critic_rule=Averaging(), actor_rule=Sharpening()),
    )
    np.testing.assert_allclose(tables.policy(np.arange(6)).sum(axis=1), 1, rtol=1e-6)


def agent(learner: str = "auto", agent_class: type[BDPI] = OtherRules) -> BDPI:
    env = gym.make("CartPole-v1")
    device = "cuda" if learner == "fused" and nvrtc.is_available() else "cpu"
    return agent_class("MlpPolicy", env, n_critics=2, fit_steps=2, batch_size=16, device=device, learner=learner)


@pytest.mark.parametrize("learner", ["auto", "fused", "torch"])
def test_an_agent_learns_by_rules_from_outside(learner):
    made = agent(learner).learn(20)
    assert made.learner_name == {"auto": "native"}.get(learner, learner)


def test_without_a_compiler_rules_from_outside_are_trained_by_pytorch_which_is_said(monkeypatch):
    monkeypatch.setattr(compiled.shutil, "which", lambda name: None)
    with pytest.warns(RuntimeWarning, match="no compiler for a rule"):
        assert agent().learner_name == "torch"
    with pytest.raises(ValueError, match="has to compile a rule"):
        agent("native")


@dataclass(frozen=True)
class Hasty(Averaging):
    def change(self, *arguments: Tensor) -> Tensor:
        return 2 * super().change(*arguments)


@dataclass(frozen=True)
class Misspelt(Averaging):
    @property
    def native(self) -> tuple[str, float, str]:
        return "averaging", self.step_size, "RULE float averaging() { return 0 }"


@dataclass(frozen=True)
class Flat(Averaging):
    def change(self, *arguments: Tensor) -> Tensor:
        return torch.zeros(1)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (Hasty, "Hasty names the C\\+\\+ rule \\('averaging', 0.3\\), which has other targets"),
        (Misspelt, "averaging does not compile"),
        (Flat, r"Flat must give a tensor of shape \(n,\), \(2,\) here: got a tensor of shape \(1,\)"),
    ],
)
def test_mistakes_of_a_critic_rule_are_named_before_anything_is_learned(rule, message):
    class Agent(BDPI):
        def critic_rule(self):
            return rule()

    with pytest.raises(ValueError, match=message):
        agent(agent_class=Agent)
