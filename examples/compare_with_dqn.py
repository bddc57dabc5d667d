"""BDPI beside Stable-Baselines3's DQN, on the same seeds. (For a comparison: STEPS = 10_000, SEEDS = range(8).)"""

import numpy as np
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_vec_env

import bdpi

STEPS, SEEDS = 280, range(2)

for algorithm in (bdpi.BDPI, DQN):
    scores = []
    for seed in SEEDS:
        env = make_vec_env("CartPole-v1", seed=seed)
        agent = algorithm("MlpPolicy", env, seed=seed)
        agent.learn(STEPS)
        scores.append(np.mean([episode["r"] for episode in agent.ep_info_buffer][-10:]))
    print(f"{algorithm.__name__:<5} return of the last ten episodes: {[round(float(score)) for score in scores]}")
