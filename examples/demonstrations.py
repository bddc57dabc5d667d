"""Begin with demonstrations: a controller shows how a car gets up a mountain. (To learn more: STEPS = 5_000.)"""

import gymnasium as gym

import bdpi

STEPS = 200

env = gym.make("MountainCar-v0")
shown = []
for seed in range(3):
    seen, _ = env.reset(seed=seed)
    done = False
    while not done:
        action = 2 if seen[1] > 0 else 0  # push the way that it rolls
        next_seen, reward, terminated, truncated, _ = env.step(action)
        shown.append((seen, action, reward, next_seen, terminated, truncated))
        seen, done = next_seen, terminated or truncated

agent = bdpi.BDPI("MlpPolicy", "MountainCar-v0", seed=0, n_critics=8)
print(f"{agent.add_demonstrations(shown, share=0.25)} transitions of 3 demonstrations")
agent.learn(STEPS)
print("returns of its own episodes:", [episode["r"] for episode in agent.ep_info_buffer])
