"""Learning while acting: the learner works in a thread of its own, and the actor that acts is a copy."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from torch import Tensor, nn

from bdpi.learner.functional import bind_parameters

T = TypeVar("T")

_SWITCH_INTERVAL = 5e-4  # seconds: how long a thread that acts may wait for one that learns to let go of Python
_LOOK_AROUND = 0.05
_NICENESS = 10


class Idle:
    """In the place of a background that does not run: nothing has to wait for anything."""

    is_running = False
    due = 0.0
    acting = observing = working = contextlib.nullcontext()

    def check(self) -> None:
        """Nothing has failed."""

    def paused(self) -> contextlib.AbstractContextManager[None]:
        """Nothing changes anyway."""
        return self.working

    def exchanging(self, actor: nn.Module | None) -> contextlib.AbstractContextManager[None]:
        """The actor is the learner's own anyway."""
        return self.working


class Background:
    """A thread that makes the learning epochs that are due.

    It alone touches the replay memory and the networks while it runs. What has been observed waits in a queue until the
    thread takes it over, between two epochs; after each epoch it publishes the actor. An agent that is no longer
    referenced is not kept alive: the thread ends.

    :param epoch: the agent's method that makes one epoch
    :param has_experience: its method that says whether there is enough of it for an epoch; what came before is not made
        up for
    :param look_after: its method for what has to be done now and then, whether there is something to learn or not
    :param learned: the actor's parameters that epochs change
    :param published: those that act
    :param due: epochs that are to be made already
    """

    def __init__(
        self,
        epoch: Callable[[], object],
        has_experience: Callable[[], object],
        look_after: Callable[[], object],
        learned: Tensor,
        published: Tensor,
        due: float = 0.0,
    ) -> None:
        self.is_running = True
        self._agent_exists = weakref.WeakMethod(epoch)
        self._epoch, self._has_experience, self._look_after = map(_weak, (epoch, has_experience, look_after))
        self.learned, self.published = learned, published
        self._waiting: deque[tuple[Callable[[], object], float]] = deque()
        self._due = due
        self._error: BaseException | None = None
        self._stop = threading.Event()
        self._news = threading.Condition()
        self._working, self._observing, self._acting = threading.RLock(), threading.RLock(), threading.Lock()
        self._switch_interval = sys.getswitchinterval()
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._run, name="bdpi learner", daemon=True)

    def start(self) -> None:
        sys.setswitchinterval(_SWITCH_INTERVAL)
        # Looking through all that PyTorch and others have made takes the garbage collector milliseconds, now and then.
        gc.collect()
        gc.freeze()
        # A thread that comes back from C++ while the interpreter ends would take the whole program down.
        atexit.register(self._end_with_program)
        self._thread.start()

    def _end_with_program(self) -> None:
        """What is frozen is not collected: an agent in a cycle of references would outlive the program's last words."""
        self._end()
        self._undo_start()

    def _end(self) -> None:
        if os.getpid() != self._process:
            return  # in a child, there is no such thread, and locks may be held for ever
        self._stop.set()
        self._tell()
        with contextlib.suppress(RuntimeError):  # whose start was interrupted; if it still comes, it finds it is to end
            self._thread.join()

    def stop(self) -> None:
        """End the thread after its current epoch, if there is one, and take over what was observed until now."""
        self._end()
        self._undo_start()
        self._take_over()
        self.publish()

    def _undo_start(self) -> None:
        atexit.unregister(self._end_with_program)
        gc.unfreeze()
        sys.setswitchinterval(self._switch_interval)

    @property
    def working(self) -> contextlib.AbstractContextManager[Any]:
        """Held while networks and memory change; by the thread itself, when it saves the agent."""
        return self._here(self._working)

    @property
    def observing(self) -> contextlib.AbstractContextManager[Any]:
        """Held while something is observed, which changes more than one thing."""
        return self._here(self._observing)

    @property
    def acting(self) -> contextlib.AbstractContextManager[Any]:
        """Held for a moment, while the copy that acts is read or written."""
        return self._here(self._acting)

    def _here(self, lock: T) -> T:
        """A lock, unless it may be held for ever: by a thread that was not forked.

        :raises RuntimeError: in a child process
        """
        if os.getpid() != self._process:
            raise RuntimeError(
                "the agent learns in the background of another process, which this one was forked from: save it there "
                "and load it here, or use the start method 'spawn'"
            )
        return lock

    def check(self) -> None:
        """:raises RuntimeError: when the thread has failed"""
        if self._error is not None:
            raise RuntimeError(f"learning in the background failed: {self._error}") from self._error

    def defer(self, store: Callable[[], object]) -> None:
        """Change the replay memory between two epochs, even if learning is interrupted before."""
        self._waiting.append((store, 0.0))

    def make(self, epochs: float) -> None:
        """Have more epochs made, after what was deferred until now."""
        self._waiting.append((lambda: None, epochs))
        self._tell()

    @property
    def due(self) -> float:
        """Epochs that are to be made: one a step, or whatever the agent's train_freq and gradient_steps say."""
        return self._due + sum(epochs for _, epochs in tuple(self._waiting))

    def wait_until_due(self, most: int) -> None:
        """Wait until no more epochs than these are to be made, or none can be, for want of experience."""
        with self._news:
            while self.due >= most + 1 and self._error is None and not self._stop.is_set():
                if not self._waiting and not self._has_experience():
                    return
                self._news.wait(_LOOK_AROUND)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Everything observed is in the memory, and nothing changes, while this lasts."""
        with self.working:
            self.publish()
            with self.observing:
                self._take_over()
                yield

    @contextlib.contextmanager
    def exchanging(self, actor: nn.Module | None) -> Iterator[None]:
        """While this lasts, nothing is learned and nothing acts, and ``actor`` is the learner's own: it may change."""
        assert actor is not None
        with self.paused():
            with self.acting:
                bind_parameters(actor, self.learned)
                try:
                    yield
                finally:
                    bind_parameters(actor, self.published)
            self.publish()

    def _tell(self) -> None:
        with self._news:
            self._news.notify_all()

    def _run(self) -> None:
        if sys.platform == "linux":
            # There, threads have priorities of their own: acting goes first.
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        try:
            while not self._stop.is_set() and self._agent_exists() is not None:
                with self.working:
                    self._take_over()
                    self._look_after()
                    learns = self._due >= 1 and bool(self._has_experience())
                    if learns:
                        self._epoch()
                        self._due -= 1
                        self.publish()
                with self._news:
                    self._news.notify_all()
                    if not learns and not self._waiting and not self._stop.is_set():
                        self._news.wait(_LOOK_AROUND)
            if not self._stop.is_set():
                self._undo_start()
        except BaseException as error:  # the next call of the agent raises it
            self._error = error
            self._tell()

    def _take_over(self) -> None:
        while self._waiting:
            store, epochs = self._waiting[0]
            store()
            if self._has_experience():
                self._due += epochs
            self._waiting.popleft()  # only now: until then, a waiting thread sees that there is something to do

    def publish(self) -> None:
        """Have what was learned act."""
        with self.acting:
            self.published.copy_(self.learned)


def _weak(method: Callable[[], T]) -> Callable[[], T | None]:
    """A method that does not keep its object alive, and does nothing when that is gone."""
    reference = weakref.WeakMethod(method)

    def call() -> T | None:
        found = reference()
        return None if found is None else found()

    return call
