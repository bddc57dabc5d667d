"""An agent that does not learn, for studies of thousands of runs: all else about a run is real.

A study gives it a :class:`Log`. That is text, but of a class of this module, so wherever a job comes, on a Ray worker
too, this module is imported and the agent ``fake`` is known.
"""

import os
import time
from pathlib import Path
from typing import Any, BinaryIO

import odd_worlds  # noqa: F401  # registers the environment

import bdpi.agents


class Log(str):
    """Name of a file that has a line for each run that began to train, and one for each that was trained."""

    def write(self, line: str) -> None:
        with open(self, "ab", buffering=0) as file:  # one write, at the end of the file: lines never mix
            file.write(f"{line}\n".encode())

    def holds(self, seed: int) -> bool:
        """Whether a run has to wait: as long as there is a file beside this one, with this seed or an earlier one."""
        try:
            return seed >= int(Path(f"{self}.gate").read_text())
        except OSError:
            return False


class Fake:
    """Acts as if it were an agent.

    :param log: see :class:`Log`
    """

    learner_name = "fake"
    num_timesteps = 0

    def __init__(self, policy: str, env: Any, seed: int, policy_kwargs: dict[str, Any], log: str = "") -> None:
        self._env, self._seed, self._log = env, seed, Log(log)
        self.agent_learner = self.replay_buffer = self
        self.has_actor = False
        self.findings: list[Any] = []

    def learn(self, total_timesteps: int, callback: Any, **_: Any) -> None:
        self._log.write(f"began {self._seed} {os.getpid()}")
        while self._log.holds(self._seed):
            time.sleep(0.01)
        callback.init_callback(self)
        self._env.reset(seed=self._seed)
        infos = [{}]
        callback.on_training_start({"infos": infos}, {})
        while True:
            _, _, terminated, truncated, infos[0] = self._env.step(0)
            self.num_timesteps += 1
            if not callback.on_step():
                break
            if terminated or truncated:
                self._env.reset()
        self._log.write(f"trained {self._seed} {os.getpid()}")

    def health(self) -> list[Any]:
        return self.findings

    def save(self, file: BinaryIO) -> None:
        file.write(b"agent")

    def save_npz(self, file: BinaryIO) -> None:
        file.write(b"memory")


bdpi.agents.AGENTS["fake"] = Fake  # type: ignore[assignment]
