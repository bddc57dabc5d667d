"""Train an agent, evaluate it, save it, and go on with it later. (To learn more: STEPS = 6_000.)"""

import bdpi

STEPS = 300

agent = bdpi.BDPI("MlpPolicy", "CartPole-v1", seed=1)
agent.learn(STEPS)
mean, deviation = bdpi.evaluate_policy(agent, "CartPole-v1", n_eval_episodes=5)
print(f"return {mean:.0f} +- {deviation:.0f} after {agent.num_timesteps} steps")

agent.save("pole", include_buffer=True)  # without its experience, it would have to collect some first
agent = bdpi.BDPI.load("pole", env="CartPole-v1")
agent.learn(30, reset_num_timesteps=False)
print(f"went on to step {agent.num_timesteps}")
