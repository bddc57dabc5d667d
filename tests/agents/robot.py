"""A robot that tests kill: it learns to walk right, remembers everything, and says what it has seen.

Arguments: a folder, and "background" to learn while acting.
"""

import sys
import warnings
from pathlib import Path

import numpy as np
from gymnasium import spaces

from bdpi import BDPI
from bdpi.envs import ControlLoop

folder, in_background = Path(sys.argv[1]), sys.argv[2:] == ["background"]
saved = folder / "robot.zip"
robot = ControlLoop(spaces.Box(0, 1, (2,), np.float32), spaces.Discrete(2))
files = {"journal": folder / "robot.sqlite", "autosave": saved, "autosave_minutes": 0.001}
small = {"n_critics": 2, "batch_size": 16, "critic_iterations": 1, "fit_steps": 4, "learning_rate": 1e-2, "seed": 0}
warnings.simplefilter("error")
agent = BDPI.load(saved, env=robot, **files) if saved.exists() else BDPI("MlpPolicy", robot, **files, **small)
print("has", agent.num_timesteps, len(agent.replay_buffer), agent._n_updates, flush=True)
if in_background:
    agent.start_learning()

place = 0
while True:
    number = agent.num_timesteps
    seen = np.array([place / 5, 0], np.float32)
    action = agent.act(seen)
    place = min(5, place + 1) if action else max(0, place - 1)
    reward = float(place == 5)
    next_seen = np.array([place / 5, 0], np.float32)
    print("observes", number, action, flush=True)
    agent.observe(seen, action, reward, next_seen, terminated=place == 5, truncated=False)
    print("observed", number, action, flush=True)  # the record of somebody else
    if not in_background:
        agent.learn_once()
    if place == 5:
        place = 0
