"""Several groups of a cohort at a time, each in a lane of its own."""

import itertools
import threading
import time

import numpy as np
import pytest

from bdpi import ABCDQN, BDPI
from bdpi.learner import Hyperparameters, Transitions, cohort, nvrtc
from bdpi.learner.cohort import Cohorts, Member, _Request
from bdpi.learner.fused import FusedNetworks
from bdpi.learner.interface import Ring
from bdpi.learner.lanes import Lane
from bdpi.learner.rules import Conservative

pytestmark = pytest.mark.usefixtures("fused_kernels")
DEVICE = "cuda" if nvrtc.is_available() else "cpu"
SIZE, CAPACITY, BATCH = 8, 40, 16
SMALL = {"n_critics": 2, "batch_size": BATCH, "policy_kwargs": {"net_arch": [16]}}
IN_A_GROUP = SIZE // cohort.N_LANES


def members(agent_class: type = BDPI) -> list[Member]:
    cohorts = Cohorts(SIZE, DEVICE)
    with cohorts.making() as made:
        for seed in range(SIZE):
            agent_class("MlpPolicy", "CartPole-v1", seed=seed, device="cpu", **SMALL)
    return made


def requests(member: Member, iterations: int = 1, count: int = 4) -> list[_Request]:
    """A member's epochs; between them, its replay memory grows: by much, by little."""
    rng = np.random.default_rng(member.slot)
    observations = rng.normal(size=(2, CAPACITY, 4)).astype(np.float32)
    numbers = rng.normal(size=(2, CAPACITY)).astype(np.float32)
    columns = observations[0], rng.integers(0, 2, CAPACITY), numbers[0], numbers[1], observations[1]
    memory = object()
    rule = None if member.actor is None else Conservative()
    hyper = Hyperparameters(critic_iterations=iterations, fit_steps=2, actor_rule=rule)
    return [
        _Request(
            member,
            Transitions(*columns, ring=Ring(memory, CAPACITY, added)),
            rng.integers(0, min(added, CAPACITY), (2, BATCH)),
            rng.permutation(2),
            hyper,
        )
        for added in itertools.islice((20, 21, 38, 45), count)
    ]


def bytes_of(member: Member) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in member.state_dict().items()}


def alone(number: int, iterations: int = 1, agent_class: type = BDPI) -> dict[str, bytes]:
    """What one member learns while the others ask for nothing."""
    member = members(agent_class)[number]
    for request in requests(member, iterations):
        member.cohort.epoch(request)
    return bytes_of(member)


class Asking(threading.Thread):
    """A run: it asks for one epoch after the other."""

    def __init__(self, requests: list[_Request]) -> None:
        super().__init__(daemon=True)
        self.requests, self.error = requests, None
        self.start()

    def run(self) -> None:
        try:
            for request in self.requests:
                request.member.cohort.epoch(request)
        except BaseException as error:
            self.error = error

    def end(self) -> BaseException | None:
        self.join(100)
        assert not self.is_alive(), "it waits for ever"
        return self.error


def test_members_of_several_groups_at_a_time_learn_as_alone(monkeypatch):
    wait, made, at_a_time = Lane.wait, members(), []

    def look_around(lane: Lane) -> None:
        time.sleep(0.01)
        at_a_time.append(cohort.N_LANES - len(made[0].cohort._free_lanes))
        wait(lane)

    expected = [alone(number, 1 + number % 2 * 2) for number in range(SIZE)]
    monkeypatch.setattr(Lane, "wait", look_around)
    # Half of them need another program: a group may have both.
    threads = [Asking(requests(member, 1 + number % 2 * 2)) for number, member in enumerate(made)]
    assert [thread.end() for thread in threads] == [None] * SIZE
    assert [bytes_of(member) for member in made] == expected
    assert max(at_a_time) >= 2


@pytest.mark.parametrize("iterations", [1, 3])
@pytest.mark.parametrize("agent_class", [BDPI, ABCDQN])
def test_members_act_with_what_they_have_learned(agent_class, iterations):
    made = members(agent_class)
    before = made[0].acting_parameters.clone()
    threads = [Asking(requests(member, iterations, 3)) for member in made[1:]]
    assert [thread.end() for thread in threads] == [None] * (SIZE - 1)
    for member in made[1:]:
        networks, observations = member.actor or member.critics, np.ones((3, 4), np.float32)
        np.testing.assert_array_equal(member.acting_parameters.numpy(), networks.parameters.cpu().numpy())
        by_device = super(Member, member).q_values(observations)
        np.testing.assert_allclose(member.q_values(observations), by_device, atol=1e-5)
    np.testing.assert_array_equal(made[0].acting_parameters.numpy(), before.numpy())


def test_an_error_reaches_those_who_are_computed_together(monkeypatch):
    made = members()
    train, wait = FusedNetworks.train_critics, Lane.wait
    is_waiting, may_go_on = threading.Event(), threading.Event()

    def train_or_fail(self, critics, active, memory, runs, inputs, *others):
        if made[0].slot in inputs.members[:runs]:
            raise ValueError("out of memory")
        train(self, critics, active, memory, runs, inputs, *others)

    def hold(lane: Lane) -> None:
        is_waiting.set()
        assert may_go_on.wait(60)
        wait(lane)

    monkeypatch.setattr(cohort, "_PATIENCE", 60)
    monkeypatch.setattr(FusedNetworks, "train_critics", train_or_fail)
    monkeypatch.setattr(Lane, "wait", hold)
    others = [Asking(requests(member, count=1)) for member in made[IN_A_GROUP : 2 * IN_A_GROUP]]
    assert is_waiting.wait(60)
    failing = [Asking(requests(member, count=1)) for member in made[:IN_A_GROUP]]
    assert ["out of memory" in str(thread.end()) for thread in failing] == [True] * IN_A_GROUP
    may_go_on.set()
    assert [thread.end() for thread in others] == [None] * IN_A_GROUP


def test_nobody_waits_for_those_who_were_interrupted(monkeypatch):
    class Interruption(threading.Event):
        def wait(self, timeout=None):
            raise KeyboardInterrupt

    made, patience = members(), cohort._PATIENCE
    monkeypatch.setattr(cohort, "_PATIENCE", 60)
    interrupted = requests(made[0], count=1)
    interrupted[0].news = Interruption()
    assert isinstance(Asking(interrupted).end(), KeyboardInterrupt)
    monkeypatch.setattr(cohort, "_PATIENCE", patience)
    assert Asking(requests(made[1])).end() is None
    assert interrupted[0].metrics is None


def test_when_all_lanes_are_taken_members_wait_for_one(monkeypatch):
    wait, may_go_on, taken = Lane.wait, threading.Event(), threading.Semaphore(0)

    def hold(lane: Lane) -> None:
        taken.release()
        assert may_go_on.wait(60)
        wait(lane)

    monkeypatch.setattr(Lane, "wait", hold)
    monkeypatch.setattr(cohort, "_PATIENCE", 0.0)  # each of them is a group
    made = members()
    threads = []
    for member in made[: cohort.N_LANES]:
        threads.append(Asking(requests(member, count=1)))
        assert taken.acquire(timeout=60)
    monkeypatch.setattr(cohort, "_PATIENCE", 60)
    threads += [Asking(requests(member, count=1)) for member in made[cohort.N_LANES :]]
    assert not taken.acquire(timeout=0.2)
    may_go_on.set()
    assert [thread.end() for thread in threads] == [None] * SIZE


def test_who_leaves_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(cohort, "_PATIENCE", 60)
    made = members()
    thread = Asking(requests(made[0], count=1))
    thread.join(0.2)
    assert thread.is_alive()
    for member in made[1:]:
        member.cohort.leave(member)
    assert thread.end() is None
