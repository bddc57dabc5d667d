"""What only the native learner promises: threads, the GIL, memory, bad arguments."""

import copy
import os
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

from bdpi.learner import Hyperparameters, native
from bdpi.learner.native import NativeLearner
from worlds import random_batches, random_state, random_transitions

pytestmark = pytest.mark.skipif(not native.is_available(), reason="the compiled learner is not installed")


def trained(sizes, one_hot=False, n_critics=5, epochs=3, **arguments) -> dict[str, np.ndarray]:
    state = random_state(sizes, sizes, n_critics)
    learner = NativeLearner(sizes, sizes, state, one_hot=one_hot, **arguments)
    transitions = random_transitions(sizes[0], sizes[-1], one_hot)
    for epoch in range(epochs):
        batches, critics = random_batches(n_critics, n_critics, 100, seed=epoch)
        learner.epoch(transitions, batches, critics, Hyperparameters())
    return learner.state_dict()


@pytest.mark.parametrize("instruction_set", native.info()["supported"])
@pytest.mark.parametrize(("sizes", "one_hot"), [([3, 32, 3], False), ([64, 32, 4], True), ([150, 32, 4], False)])
def test_the_number_of_threads_changes_no_bit(sizes, one_hot, instruction_set):
    results = [trained(sizes, one_hot, n_threads=n, instruction_set=instruction_set) for n in (1, 2, 3, 1, 2, 3)]
    for other in results[1:]:
        for name, array in results[0].items():
            assert array.tobytes() == other[name].tobytes(), name


def test_the_gil_is_released_for_the_whole_epoch():
    """Python code runs while an epoch does: between its start and its end, another thread counts many times."""
    state = random_state([8, 256, 4], [8, 256, 4], 4)
    learner = NativeLearner([8, 256, 4], [8, 256, 4], state, n_threads=1)
    transitions = random_transitions(8, 4, False)
    batches, critics = random_batches(4, 4, 256)
    running, counts = threading.Event(), []

    def count() -> None:
        while running.is_set():
            counts.append(time.perf_counter())
            time.sleep(0.0005)

    def longest_gap() -> float:
        """As a share of the epoch."""
        counter = threading.Thread(target=count)
        running.set()
        counter.start()
        start = time.perf_counter()
        learner.epoch(transitions, batches, critics, Hyperparameters(critic_iterations=16))
        end = time.perf_counter()
        running.clear()
        counter.join()
        during = [moment for moment in counts if start < moment < end]
        return float(np.max(np.diff([start, *during, end]))) / (end - start)

    # Held for any longer stretch, the lock would leave a gap of that length in every epoch; a busy machine, in some.
    assert any(longest_gap() < 0.25 for _ in range(50))


def test_nothing_is_allocated_during_an_epoch(tmp_path):
    """Counted by a malloc that counts: no call by the threads, and a long epoch makes no more than a short one."""
    source = tmp_path / "count.c"
    source.write_text(
        textwrap.dedent("""
        #include <stddef.h>
        #include <unistd.h>
        extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void*, size_t);
        extern void* __libc_memalign(size_t, size_t);
        static long calls, calls_of_workers;
        long count(void) { return __atomic_load_n(&calls, __ATOMIC_SEQ_CST); }
        long count_of_workers(void) { return __atomic_load_n(&calls_of_workers, __ATOMIC_SEQ_CST); }
        static void note(void) {
            __atomic_fetch_add(&calls, 1, __ATOMIC_SEQ_CST);
            if (gettid() != getpid()) __atomic_fetch_add(&calls_of_workers, 1, __ATOMIC_SEQ_CST);
        }
        void* malloc(size_t n) { note(); return __libc_malloc(n); }
        void* calloc(size_t k, size_t n) { note(); return __libc_calloc(k, n); }
        void* realloc(void* p, size_t n) { note(); return __libc_realloc(p, n); }
        void* aligned_alloc(size_t a, size_t n) { note(); return __libc_memalign(a, n); }
        int posix_memalign(void** p, size_t a, size_t n) { note(); *p = __libc_memalign(a, n); return *p ? 0 : 12; }
        """)
    )
    library = tmp_path / "count.so"
    built = subprocess.run(
        ["gcc", "-D_GNU_SOURCE", "-O1", "-shared", "-fPIC", "-o", library, source], capture_output=True
    )
    if built.returncode != 0:
        pytest.skip(f"no C compiler to build the counter with: {built.stderr.decode()[:200]}")
    script = textwrap.dedent("""
        import ctypes, gc, sys
        sys.path.insert(0, sys.argv[1])
        import numpy as np
        from bdpi.learner import Hyperparameters
        from bdpi.learner.native import NativeLearner
        from worlds import random_batches, random_state, random_transitions
        library = ctypes.CDLL(None)
        library.count.restype = library.count_of_workers.restype = ctypes.c_long
        learner = NativeLearner([3, 32, 3], [3, 32, 3], random_state([3, 32, 3], [3, 32, 3], 8), n_threads=2)
        transitions = random_transitions(3, 3, False)
        short = (random_batches(8, 1, 64), Hyperparameters(critic_iterations=1, fit_steps=1))
        long = (random_batches(8, 8, 256), Hyperparameters(critic_iterations=4, fit_steps=20))
        gc.disable()
        def calls(work):
            (batches, critics), hyper = work
            before = library.count(), library.count_of_workers()
            learner.epoch(transitions, batches, critics, hyper)
            return library.count() - before[0], library.count_of_workers() - before[1]
        for work in (short, long) * 3:
            calls(work)
        print(*calls(short), *calls(long))
    """)
    result = subprocess.run(
        [sys.executable, "-c", script, os.path.dirname(__file__)],
        env={**os.environ, "LD_PRELOAD": str(library), "PYTHONMALLOC": "pymalloc"},
        capture_output=True,
        text=True,
        check=True,
    )
    short, of_workers_in_short, long, of_workers_in_long = (int(word) for word in result.stdout.split())
    assert of_workers_in_short == of_workers_in_long == 0  # the threads that share the work
    assert short == long  # what is left is Python passing the arguments


def test_a_forked_process_can_go_on_learning():
    state = random_state([3, 16, 2], [3, 16, 2], 4)
    learner = NativeLearner([3, 16, 2], [3, 16, 2], state, n_threads=2)
    transitions = random_transitions(3, 2, False)
    batches, critics = random_batches(4, 4, 64)
    learner.epoch(transitions, batches, critics, Hyperparameters())
    child = os.fork()
    if child == 0:
        learner.epoch(transitions, batches, critics, Hyperparameters())
        os._exit(0)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            assert os.waitstatus_to_exitcode(status) == 0
            return
        time.sleep(0.05)
    os.kill(child, 9)
    pytest.fail("the forked process hangs")


def test_rarely_visited_states_cost_no_more_after_a_long_time():
    """Moments that have decayed to almost nothing must not become denormal numbers."""
    state = random_state([16, 8, 2], [16, 8, 2], 2)
    for networks in (state.actor, state.critics):
        networks.first_moment[...] = 1e-40
        networks.second_moment[...] = 1e-42
    learner = NativeLearner([16, 8, 2], [16, 8, 2], state, one_hot=True)
    transitions = random_transitions(3, 2, True)  # states 3 to 15 do not occur
    batches, critics = random_batches(2, 2, 64)
    learner.epoch(transitions, batches, critics, Hyperparameters())
    moments = learner.state_dict()["critics.second_moment"][0, 0][:128].reshape(8, 16)
    assert np.all(moments[:, 3:] == 0)
    assert np.all(moments[:, :3] > 0)


@pytest.fixture
def learner_and_batch():
    state = random_state([4, 8, 3], [4, 8, 3], 2)
    learner = NativeLearner([4, 8, 3], [4, 8, 3], state, batch_size=32, one_hot=True)
    return learner, random_transitions(4, 3, True), *random_batches(2, 2, 32)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("actions", 3, r"action 3 is outside 0\.\.2"),
        ("actions", -1, r"action -1 is outside"),
        ("observations", 4, r"observations: state 4 is outside 0\.\.3"),
        ("next_observations", -7, r"next_observations: state -7"),
    ],
)
def test_numbers_outside_their_range_change_nothing(learner_and_batch, field, value, message):
    learner, transitions, batches, critics = learner_and_batch
    before = copy.deepcopy(learner.state_dict())
    getattr(transitions, field)[batches[1, 5]] = value
    with pytest.raises(ValueError, match=message):
        learner.epoch(transitions, batches, critics, Hyperparameters())
    for name, array in learner.state_dict().items():
        np.testing.assert_array_equal(array, before[name])


def test_wrong_indices_and_sizes_are_refused(learner_and_batch):
    learner, transitions, batches, critics = learner_and_batch
    for given, message in (
        ((batches * 0 + 500, critics), "index 500"),
        ((batches, np.array([0, 2])), "distinct numbers from 0 to 1"),
        ((np.zeros((2, 33), np.int64), critics), "got 33"),
    ):
        with pytest.raises(ValueError, match=message):
            learner.epoch(transitions, *given, Hyperparameters())
    with pytest.raises(ValueError, match="mmx"):
        NativeLearner([4, 8, 3], [4, 8, 3], learner.state, instruction_set="mmx")
    with pytest.raises(RuntimeError, match="active"):
        learner.load_state_dict({name: a for name, a in learner.state_dict().items() if name != "active"})


@pytest.mark.parametrize("value", ["0", "two", "-3"])
def test_a_senseless_number_of_threads_is_named(monkeypatch, value):
    monkeypatch.setenv("BDPI_NUM_THREADS", value)
    with pytest.raises(ValueError, match=rf"BDPI_NUM_THREADS.*{value}"):
        native.default_threads()
