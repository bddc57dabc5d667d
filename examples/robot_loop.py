"""A robot that calls the agent from its own loop, crashes, and loses nothing. (To learn more: STEPS = 3_000.)"""

import numpy as np
from gymnasium import spaces

import bdpi

STEPS = 300
ROBOT = bdpi.envs.ControlLoop(
    observation_space=spaces.Box(-1, 1, (2,), np.float32),  # where it is, how fast it is
    action_space=spaces.Discrete(3),  # push left, none, push right
)


def drive(agent: bdpi.BDPI, steps: int) -> float:
    """Hold the position 0; returns the mean distance from it."""
    position, speed, distances = 0.5, 0.0, []
    for tick in range(steps):
        seen = np.array([position, speed], np.float32)
        action = agent.act(seen)
        if abs(position) > 0.9:  # a safety layer pushes it back, and the agent is told
            action = 0 if position > 0 else 2
        speed = 0.9 * speed + 0.02 * (action - 1)
        position = float(np.clip(position + speed, -1, 1))
        distances.append(abs(position))
        next_seen = np.array([position, speed], np.float32)
        agent.observe(seen, action, -abs(position), next_seen, terminated=False, truncated=tick % 50 == 49)
        agent.learn_once()
    return float(np.mean(distances))


agent = bdpi.BDPI("MlpPolicy", ROBOT, journal="robot.sqlite", seed=0, n_critics=8)
print(f"mean distance {drive(agent, STEPS):.2f}")
agent.close_journal()  # a crash would do, too
del agent

agent = bdpi.BDPI("MlpPolicy", ROBOT, journal="robot.sqlite", seed=1, n_critics=8)
print(f"a new agent begins with {len(agent.replay_buffer)} transitions of the journal")
print(f"mean distance {drive(agent, STEPS // 5):.2f}")
