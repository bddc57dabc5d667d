"""The loop of benchmarks/scales, which trains many runs at once: it learns what single learners do."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from bdpi.learner import Hyperparameters, LearnerState, Transitions, nvrtc
from bdpi.learner.fused import FusedLearner, FusedNetworks
from bdpi.learner.rules import ClippedDouble, Conservative
from bdpi.learner.scales import Scales
from scales import loop, tasks, workers
from scales.analyse import History
from scales.candidates import Candidate
from scales.deploy import choose
from scales.learning import Draws, Learning, Novelty, Trials, initial_networks
from scales.scaling import RunScales, preserve_first_layers

DEVICE = torch.device("cuda" if nvrtc.is_available() else "cpu")
SMALL = {"n_critics": 2, "batch_size": 16, "critic_iterations": 2, "fit_steps": 2, "hidden": 8}
SPACE = tasks.Space(3, 2, False, np.array([-1.0, -2, -np.inf]), np.array([1.0, 4, np.inf]))


@pytest.fixture(autouse=True)
def _kernels(fused_kernels):
    pass


def make_learning(candidates, steps=60, space=SPACE):
    learning = Learning(space, candidates, range(len(candidates)), 8, steps, DEVICE, 1, "test")
    learning.allocate()
    learning.set_scales(np.stack([Scales.none(space.inputs).packed()] * len(candidates)))
    return learning


def store(learning, steps):
    for seen, arrays in steps:
        with learning.work():
            learning.store(seen, arrays)
        learning.wait()


def made_up(runs, steps, seed=0):
    """Observations before each step, and what the environments answer."""
    rng = np.random.default_rng(seed)
    seen = rng.normal(size=(runs, 3)).astype(np.float32)
    for _ in range(steps):
        ended = rng.random(runs) < 0.2
        final = rng.normal(size=(runs, 3)).astype(np.float32)
        after = np.where(ended[:, None], rng.normal(size=(runs, 3)), final).astype(np.float32)
        arrays = {"observations": after, "final": final, "actions": rng.integers(0, 2, runs), "ended": ended}
        arrays["rewards"] = rng.normal(size=runs).astype(np.float32)
        arrays["discounts"] = np.where(ended & (rng.random(runs) < 0.5), 0, 0.9).astype(np.float32)
        yield seen, arrays
        seen = after


def test_an_epoch_is_that_of_a_single_learner():
    candidates = [Candidate(**SMALL, learning_rate=1e-3), Candidate(**SMALL, actor_learning_rate=3e-3, trust_region=1)]
    scales = [
        Scales.none(3),
        Scales(np.float32([0.1, 0, -1]), np.float32([0.5, 2, 1]), return_shift=0.3, return_factor=0.2),
    ]
    learning = make_learning(candidates)
    learning.set_scales(np.stack([each.packed() for each in scales]))
    steps = list(made_up(2, 30))
    store(learning, steps)
    with learning.work():
        learning.tensors.batches.random_(0, 30)
        learning.tensors.order.copy_(torch.tensor([[1, 0], [0, 1]]))
        learning.train()
        policy, q = learning.policy().cpu().numpy(), learning.q_values()[0].cpu().numpy()
    learning.wait()
    for run, candidate in enumerate(candidates):
        critics, actor = initial_networks(run, (3, 8, 2), 2)
        module = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
        networks = FusedNetworks((3, 8, 2), (3, 8, 2), one_hot=False, relu=False)
        single = FusedLearner(module, module, LearnerState.fresh(actor, critics), networks, DEVICE)
        columns = ("actions", "rewards", "discounts", "final")
        experience = Transitions(
            np.stack([seen[run] for seen, _ in steps]),
            *(np.stack([arrays[name][run] for _, arrays in steps]) for name in columns),
            scales=scales[run],
        )
        rates = candidate.rates
        hyper = Hyperparameters(2, 2, ClippedDouble(rates[2]), rates[0], rates[1], Conservative(candidate.trust_region))
        chosen = (part[run].long().cpu().numpy() for part in (learning.tensors.batches, learning.tensors.order))
        single.epoch(experience, *chosen, hyper)
        for mine, theirs in ((learning.critics, single.critics), (learning.actors, single.actor)):
            for name, tensor in vars(theirs).items():
                np.testing.assert_allclose(getattr(mine, name)[run].cpu(), tensor.cpu(), atol=1e-6, err_msg=name)
        assert torch.equal(learning.active[run], single.active)
        inputs = scales[run].inputs(steps[-1][1]["observations"][run : run + 1])
        np.testing.assert_allclose(policy[run], single.policy(inputs)[0], atol=1e-6)
        np.testing.assert_allclose(q[run], single.q_values(inputs)[:, 0], atol=1e-6)


def test_actions_are_drawn_from_the_policy_for_state_numbers():
    space = tasks.Space(5, 3, True, np.zeros(0), np.zeros(0))
    learning = make_learning([Candidate(**SMALL), Candidate(**SMALL)], space=space)
    _, parameters = initial_networks(1, (5, 8, 3), 2)
    module = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
    nn.utils.vector_to_parameters(torch.as_tensor(parameters), module.parameters())
    expected = module(torch.eye(5)[4]).softmax(dim=0).detach().numpy()
    counts = np.zeros(3)
    for _ in range(2000):
        with learning.work():
            learning.look(np.array([2, 4]))
            learning.act()
        counts[learning.wait()[1]] += 1
    np.testing.assert_allclose(learning.policy()[1].cpu(), expected, atol=1e-6)
    np.testing.assert_allclose(counts / 2000, expected, atol=0.05)


@pytest.mark.parametrize(("n_step", "until"), [(1, 0), (3, 0), (3, 30)])
@pytest.mark.parametrize("capacity", [16, 100])
def test_memories_are_rings_of_sums_of_rewards(n_step, until, capacity):
    second = Candidate(**SMALL, n_step=n_step, n_step_until=until, capacity=capacity)
    candidates = [Candidate(**SMALL, n_step=2), second]
    learning = make_learning(candidates)
    steps = list(made_up(2, 40))
    store(learning, steps)
    memory = learning.memory
    for first in range(max(0, 40 - capacity), 40):
        reward, discount = 0.0, 1.0
        n_rewards = n_step if first < (until or 40) else 1
        for last in range(first, min(first + n_rewards, 40)):
            arrays = steps[last][1]
            reward += discount * arrays["rewards"][1]
            discount *= arrays["discounts"][1]
            if arrays["ended"][1]:
                break
        place = first % capacity
        assert float(memory.rewards[1, place]) == pytest.approx(reward, abs=1e-5)
        assert float(memory.discounts[1, place]) == pytest.approx(discount, abs=1e-6)
        np.testing.assert_array_equal(memory.next_observations[1, place].cpu(), steps[last][1]["final"][1])
        np.testing.assert_array_equal(memory.observations[1, place].cpu(), steps[first][0][1])


def test_batches_come_from_what_a_critic_may_see():
    candidates = [Candidate(**SMALL, capacity=20), Candidate(**SMALL, share=0.5), Candidate(**SMALL)]
    learning = make_learning(candidates)
    seen = [[set(), set()] for _ in candidates]
    store(learning, made_up(3, 50))
    with learning.work():
        for _ in range(60):
            learning._draw()
            for run, critics in enumerate(seen):
                for batch, critic in zip(learning.tensors.batches[run], learning.tensors.order[run], strict=True):
                    critics[int(critic)] |= set(batch.tolist())
    learning.wait()
    assert seen[0] == [set(range(20))] * 2
    assert seen[2] == [set(range(50))] * 2
    assert all(10 < len(places) < 40 for places in seen[1])
    assert seen[1][0] != seen[1][1]


def test_a_new_scale_of_returns_changes_no_prediction():
    candidate = Candidate(**SMALL, return_size=2.0, centre=True, observations="bounds")
    learning, scales = make_learning([candidate]), RunScales([candidate], SPACE, 60)
    learning.set_scales(scales.packed())
    steps = list(made_up(1, 40))
    for count, (_, arrays) in enumerate(steps, 1):
        scales.add(arrays)
        if count == 20:
            scales.estimate([0])
    before, after = scales.estimate([0])[0]
    assert after.return_factor != before.return_factor
    np.testing.assert_allclose(after.factor[:2], [1, 1 / 3])  # bounds from -1 to 1, from -2 to 4
    assert after.factor[2] == pytest.approx(1 / np.std([arrays["final"][0, 2] for _, arrays in steps]), rel=1e-5)
    with learning.work():
        learning.look(steps[0][0])
        q = before.q_values(learning.q_values()[0].cpu().numpy())
        learning.rescale({0: (before, after)})
        same = after.q_values(learning.q_values()[0].cpu().numpy())
    np.testing.assert_allclose(same, q, rtol=1e-4, atol=1e-4)


def test_a_first_reward_is_noticed():
    scales = RunScales([Candidate(return_size=1.0), Candidate(), Candidate(return_size=1.0)], SPACE, 10)
    (_, arrays), *_ = made_up(3, 1)
    noticed = [scales.add({**arrays, "rewards": np.array(r, np.float32)}).tolist() for r in ([0, 1, 0], [5, 1, 0])]
    assert noticed == [[], [0]]
    assert [each.knows_returns for _, each in scales.estimate(range(3)).values()] == [True]


def test_ranges_grow_from_nothing():
    scales = RunScales([Candidate(observations="range")], SPACE, 100)
    assert not scales.scales[0].factor.any()
    seen = []
    for count, (_, arrays) in enumerate(made_up(1, 40), 1):
        scales.add(arrays)
        seen.append(arrays["final"][0])
        if count in (10, 40):
            scales.estimate([0])
            inputs = scales.scales[0].inputs(np.array(seen))
            np.testing.assert_allclose([inputs.min(axis=0), inputs.max(axis=0)], [[-1] * 3, [1] * 3], atol=1e-5)


def test_margins_become_narrow():
    space = tasks.Space(2, 2, False, np.array([0.0, -np.inf]), np.array([1.0, np.inf]))
    scales = RunScales([Candidate(observations="narrow", narrow_from=2)], space, 20)
    widths = []
    for step in range(8):
        final = np.array([[0.5 + 0.1 * (step % 2), step % 2]])
        scales.add({"final": final, "rewards": np.zeros(1), "discounts": np.zeros(1), "ended": np.zeros(1, bool)})
        if step + 1 in (2, 4, 8):
            ((_, after),) = scales.estimate([0]).values()
            widths.append(2 / after.factor)
    assert np.array(widths) == pytest.approx(np.array([[1, 1], [0.6, 1], [0.35, 1]]))


@pytest.mark.parametrize("n_rewards", [1, 3])
def test_bounds_count_where_rewards_are_rare(n_rewards):
    space = tasks.Space(2, 2, False, np.array([0.0, -np.inf]), np.array([1.0, np.inf]))
    scales = RunScales([Candidate(observations="range", return_size=9.0, rare=0.2)], space, 20)
    nothing = {"discounts": np.zeros(1), "ended": np.zeros(1, bool)}
    for step in range(10):
        rewards = np.array([2.0 if step < n_rewards else 0.0])
        scales.add({"final": np.array([[0.1 * (step % 2), step % 2]]), "rewards": rewards, **nothing})
    ((_, after),) = scales.estimate([0]).values()
    is_rare = n_rewards == 1
    assert 2 / after.factor == pytest.approx([1.0 if is_rare else 0.1, 1])
    assert after.return_factor == pytest.approx(1.5 if is_rare else 4.5)


def test_new_scales_of_observations_can_leave_networks_as_they_are():
    network = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double()
    before, after = (
        Scales(np.array(shift, np.float64), np.array(factor, np.float64))
        for shift, factor in (([0.5, -2, 1], [3, 0.1, 2]), ([0.7, 1, 0], [1, 0.5, 5]))
    )
    raw = np.random.default_rng(0).normal(size=(40, 3))
    targets = torch.randn(40, 2, dtype=torch.float64)

    def outputs_and_gradient(scales):
        network.zero_grad()
        outputs = network(torch.as_tensor(scales.inputs(raw)))
        ((outputs - targets) ** 2).mean().backward()
        return outputs.detach(), torch.cat([each.grad.flatten() for each in network.parameters()])

    expected, gradient = outputs_and_gradient(before)
    parameters = torch.cat([each.detach().flatten() for each in network.parameters()])
    state = {"parameters": parameters, "first_moment": gradient.clone(), "second_moment": gradient**2}
    preserve_first_layers(state, before, after, 5)
    nn.utils.vector_to_parameters(parameters, network.parameters())
    outputs, gradient = outputs_and_gradient(after)
    torch.testing.assert_close(outputs, expected)
    torch.testing.assert_close(state["first_moment"], gradient)


def test_random_numbers_are_kept_for_a_while():
    draws = Draws([Candidate(), Candidate(persistence=16), Candidate(persistence=16, persistence_until=500)] * 300, 0)
    rewards, ended = np.zeros(900), np.zeros(900, np.bool_)
    early = np.mean([draws.anew(rewards, ended) for _ in range(499)], axis=0)
    late = np.mean([draws.anew(rewards, ended) for _ in range(500)], axis=0)
    assert np.all(early[0::3] == 1)
    assert np.all(late[2::3] == 1)
    for share in (early[1::3], early[2::3], late[1::3]):  # 1 / mean, evenly on a logarithmic scale between 1/16 and 1
        assert share.min() < 0.1
        assert share.max() > 0.9
        assert np.median(share) == pytest.approx(1 / 4, rel=0.3)
    assert draws.anew(rewards, ~ended).all()


@pytest.mark.parametrize(("cost", "share"), [(0.0, 0.5), (1.0, 0.05), (-1.0, 0.5)])
def test_random_numbers_are_kept_as_long_as_that_costs_nothing(cost, share):
    trials, generator = Trials(), np.random.default_rng(0)
    kept = []
    for _ in range(2000):
        keeps, is_greedy = trials.choose(generator)
        assert not is_greedy
        kept.append(keeps)
        trials.add(-cost * keeps)
    assert np.mean(kept[20:]) == pytest.approx(share, abs=0.04)


@pytest.mark.parametrize(("gain", "share"), [(0.0, 0.1), (1.0, 0.8), (-1.0, 0.1)])
def test_greedy_episodes_are_many_where_they_are_worth_more(gain, share):
    trials, generator = Trials(greedy=True), np.random.default_rng(0)
    greedy = []
    for _ in range(2000):
        greedy.append(trials.choose(generator)[1])
        trials.add(gain * greedy[-1])
    assert np.mean(greedy[40:]) == pytest.approx(share, abs=0.04)


def test_a_greedy_episode_takes_the_most_probable_action():
    learning = make_learning([Candidate(**SMALL), Candidate(**SMALL, greedy_trials=True)])
    learning._draws.is_greedy[1] = True
    taken = []
    for _ in range(50):
        with learning.work():
            learning.look(np.full((2, 3), 0.3, np.float32))
            learning.act()
        taken.append(learning.wait().copy())
    taken = np.array(taken)
    assert len(set(taken[:, 0])) == 2
    assert set(taken[:, 1]) == {int(learning.policy()[1].argmax())}


def test_fresh_batches_are_one_iteration_each():
    fresh, once = make_learning([Candidate(**SMALL, fresh=True)]), make_learning([Candidate(**SMALL)])
    for learning in (fresh, once):
        drawn = []
        train = learning._train_critics
        learning._train_critics = lambda drawn=drawn, learning=learning, train=train: (
            drawn.append(learning.tensors.batches.clone()),
            train(),
        )
        store(learning, made_up(1, 20))
        with learning.work():
            learning.epoch()
        learning.wait()
        assert learning.critics.steps.tolist() == [[[2, 2], [2, 2]]]
        assert learning.actors.steps.tolist() == [4]
        assert len(drawn) == (2 if learning is fresh else 1)
    assert not torch.equal(fresh.critics.parameters, once.critics.parameters)


def test_seldom_seen_cells_are_drawn_more_often():
    space = tasks.Space(1, 2, False, np.array([0.0]), np.array([1.0]))
    learning = make_learning([Candidate(**SMALL), Candidate(**SMALL, balance=1.0)], space=space)
    for step in range(50):
        final = np.full((2, 1), 0.9 if step == 20 else 0.1, np.float32)
        arrays = {"observations": final, "final": final, "actions": np.zeros(2), "ended": np.zeros(2, bool)}
        arrays |= {"rewards": np.zeros(2), "discounts": np.full(2, 0.9)}
        store(learning, [(final, arrays)])
    drawn = []
    with learning.work():
        for _ in range(100):
            learning._draw()
            drawn.append(learning.tensors.batches.cpu().numpy().copy())
    shares = (np.stack(drawn) == 20).mean(axis=(0, 2, 3))
    harmonic = np.sum(1 / np.arange(1, 50))
    assert shares == pytest.approx([1 / 50, 1 / (1 + harmonic)], abs=0.02)
    assert np.stack(drawn).max() == 49


def test_seldom_seen_cells_are_worth_more_in_units_of_the_networks():
    space = tasks.Space(2, 2, False, np.array([-1.0, 0]), np.array([1.0, 2]))
    novelty = Novelty([Candidate(rare=0.5, novelty=0.3), Candidate()], space, 20)
    arrays = {"rewards": np.zeros(2), "final": np.array([[0.5, 1], [0.5, 1]])}
    factors = np.float32([0.1, 0.1])
    found = [novelty.add(arrays, factors) for _ in range(4)]
    np.testing.assert_allclose([row[0] for row in found], 3 / np.sqrt([1, 2, 3, 4]), rtol=1e-6)
    assert all(row[1] == 0 for row in found)
    arrays["final"] = np.array([[-0.5, 1], [0.5, 1]])
    assert novelty.add(arrays, factors)[0] == pytest.approx(3)
    arrays["rewards"][0] = 7
    extra = [novelty.add(arrays, factors)[0] for _ in range(6)]
    assert extra[-1] == 0  # half of the steps have a reward: it is no longer rare
    expected = np.array([0.3 / np.sqrt(k) for k in (1, 2, 3, 4, 1)])
    np.testing.assert_allclose(novelty.rewards(0, 2.0)[:5], expected / 2, rtol=1e-6)
    assert novelty.rewards(0, 2.0)[-1] == 7


def test_critics_begin_anew_in_turn():
    learning = make_learning([Candidate(**SMALL, reset_every=1), Candidate(**SMALL)])
    store(learning, made_up(2, 20))
    with learning.work():
        learning.epoch()
    learning.wait()
    assert learning.critics.steps.tolist() == [[[0, 0], [2, 2]], [[2, 2], [2, 2]]]
    assert float(learning.critics.second_moment[0, 0].abs().max()) == 0


def test_environments_begin_episodes_by_themselves():
    variant = tasks.find("CartPole-v1@obs10@rew0.1")
    runs = [workers.Run(3, 0.9, False), workers.Run(4, 0.9, False)]
    environments = workers.Environments(variant, tasks.space_of(variant), runs, 2)
    twins = [gym.make("CartPole-v1") for _ in runs]
    try:
        seen = environments.reset(7)["observations"]
        for row, (twin, run) in enumerate(zip(twins, runs, strict=True)):
            np.testing.assert_allclose(seen[row], 10 * twin.reset(seed=7 + run.seed)[0], rtol=1e-6)
        ended = 0
        for _ in range(25):
            arrays = environments.step(np.array([1, 1]))
            for row, twin in enumerate(twins):
                observation, reward, terminated, _, _ = twin.step(1)
                np.testing.assert_allclose(arrays["final"][row], 10 * observation, rtol=1e-6)
                assert arrays["rewards"][row] == pytest.approx(0.1 * reward)
                assert arrays["discounts"][row] == pytest.approx(0 if terminated else 0.9)
                assert arrays["ended"][row] == terminated
                if terminated:
                    ended += 1
                    observation, _ = twin.reset()
                np.testing.assert_allclose(arrays["observations"][row], 10 * observation, rtol=1e-6)
        records = environments.records()
        assert len(records) == ended > 2
        assert all(value == length == real for _, _, value, length, real in records)
        with pytest.raises(workers.Failure, match="AssertionError"):
            environments.step(np.array([1, 99]))
    finally:
        environments.close()


@pytest.mark.parametrize("limits_terminal", [False, True])
def test_time_limits_end_episodes_only_where_they_should(limits_terminal):
    variant = tasks.find("MountainCar-v0")
    environments = workers.Environments(variant, tasks.space_of(variant), [workers.Run(0, 0.9, limits_terminal)], 1)
    try:
        environments.reset(0)
        for _ in range(200):
            arrays = environments.step(np.array([1]))
        assert arrays["ended"].all()
        assert arrays["discounts"][0] == pytest.approx(0 if limits_terminal else 0.9)
    finally:
        environments.close()


@pytest.mark.full
def test_a_group_learns_and_records():
    settings = loop.Settings(DEVICE, sharing=1, steps=20, deploy=1)
    runs = [(Candidate(**SMALL), 0), (Candidate(**SMALL, name="other", observations="range"), 0)]
    group = loop.Group("test", tasks.find("CartPole-v1"), runs, settings)
    episodes, deployed = [], []
    group.run(loop.threading.Event(), episodes.extend, deployed.extend)
    assert not group.failure
    assert (group.steps, group.learning.epochs, group.diverged) == (20, 5, 0)
    assert {row[1] for row in episodes} <= {"paper", "other"}
    assert len(deployed) == 2 * 10


def test_critics_decide_among_what_the_actor_finds_likely():
    policy = torch.tensor([[0.6, 0.35, 0.05]])
    q = torch.tensor([[[0.0, 1, 5], [0, 1, 0], [0, 1, 0]]])
    expected = {"actor": 0, "vote": 1, "mean": 2, "tenth": 1, "half": 1, "min-mean": 1}
    other = q - torch.tensor([0.0, 0, 9])
    assert {rule: int(choose(rule, policy, q, other)) for rule in expected} == expected


def test_scores():
    task = tasks.Task("any", 1000, 0.0, 1.0)
    never = History(np.arange(10.0, 1001, 10), np.zeros(100))
    learned = History(np.arange(10.0, 1001, 10), (np.arange(100) >= 50).astype(float))
    assert never.score(task, 1000) == 0
    assert learned.score(task, 1000) == pytest.approx(0.5)
    assert learned.steps_to(0.5) == 600
    assert never.steps_to(0.5) == np.inf
