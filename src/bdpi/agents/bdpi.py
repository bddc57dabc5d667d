"""Bootstrapped Dual Policy Iteration."""

from __future__ import annotations

from bdpi.agents.base import EnsembleAlgorithm


class BDPI(EnsembleAlgorithm):
    """Bootstrapped Dual Policy Iteration (BDPI).

    An actor slowly imitates the greedy policies of several off-policy critics, each of which is trained aggressively
    on batches of its own. Actions are drawn from the actor. One configuration, the default, serves most tasks.

    Paper: Steckelmacher et al., "Sample-Efficient Model-Free Reinforcement Learning with Off-Policy Critics",
    https://arxiv.org/abs/1903.04193

    :param policy: "MlpPolicy", "CnnPolicy", "MultiInputPolicy", or a subclass of
        :class:`~bdpi.agents.policies.BDPIPolicy`
    :param env: the environment to learn from (an id, an environment or a ``VecEnv``); Discrete actions
    :param learning_rate: Adam's learning rate of the critics; may be a function of the remaining progress
    :param buffer_size: how many transitions are remembered. A larger memory forgets less and reacts more slowly.
    :param batch_size: transitions per batch. Learning starts when there is one batch.
    :param gamma: discount factor
    :param train_freq: transitions (of each environment) between learning epochs, or ``(n, "episode")``.
        More than 1 saves computation at the cost of samples.
    :param gradient_steps: learning epochs each time, per environment; -1 makes as many as there were transitions
    :param n_critics: N_c. More critics make learning smoother and exploration more careful, and cost time.
    :param critics_per_step: how many of the critics an epoch trains, picked at random; all if None
    :param critic_iterations: N_t, training iterations per critic and epoch. More extract more from a batch.
    :param fit_steps: Adam steps per fit of a network; 20 if None (1 for "CnnPolicy")
    :param critic_step_size: alpha, how far Q-values move towards their new estimate in one iteration. Lower values
        average over more transitions, which noisy rewards may need.
    :param trust_region: delta, the KL divergence by which one critic may move the actor. Lower explores longer.
    :param actor_learning_rate: Adam's learning rate of the actor; ``learning_rate`` if None
    :param policy_kwargs: arguments of the policy, for instance ``dict(net_arch=[256])``
    :param stats_window_size: episodes over which the logged mean return is taken
    :param tensorboard_log: folder for TensorBoard; no such log if None
    :param verbose: 0 silent, 1 information, 2 debugging
    :param seed: makes everything repeatable, bit for bit on the same machine
    :param device: where networks live. "auto" is the CPU for perceptrons, else a GPU if there is one.
    :param learner: "native" (C++), "torch", or "auto": native wherever possible
    :param n_threads: threads of the native learner; all cores if None. Never changes results.
    :param _init_setup_model: build the networks at once
    """
