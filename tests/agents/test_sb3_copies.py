"""What users of Stable-Baselines3 do with models and policies: copy, pickle, set parameters, trace, compile, save."""

import copy
import io
from typing import Any

import cloudpickle
import numpy as np
import onnxruntime
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import SubprocVecEnv, VecNormalize

from bdpi import ABCDQN, BDPI, ActorMimic, BootstrappedDQN, TabularBDPI
from small import QUICK, Walk, fingerprint

AGENTS = [BDPI, ActorMimic, ABCDQN, BootstrappedDQN, TabularBDPI]
BOX = spaces.Box(-1, 1, (3,), np.float32)
WAYS = {"deepcopy": copy.deepcopy, "cloudpickle": lambda agent: cloudpickle.loads(cloudpickle.dumps(agent))}
#: agents and what trains them; tables have Discrete observations
CASES = [
    *((each, "native") for each in AGENTS[:4]),
    *((each, "torch") for each in (BDPI, ABCDQN)),
    *(pytest.param(each, "torch", marks=pytest.mark.full) for each in (ActorMimic, BootstrappedDQN)),
    (TabularBDPI, "auto"),
]
SMALL: dict[str, Any] = {**QUICK, "n_critics": 2, "critic_iterations": 1}


def make(agent_class: type = BDPI, env: Any = None, policy: str = "MlpPolicy", **arguments: Any) -> Any:
    if env is None:
        env = "FrozenLake-v1" if agent_class is TabularBDPI else Walk()
    return agent_class(policy, env, seed=1, **{**SMALL, **arguments})


def observations_of(agent: Any, n: int = 40) -> np.ndarray:
    space = copy.deepcopy(agent.observation_space)
    space.seed(7)
    return np.stack([space.sample() for _ in range(n)])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("agent_class", "learner"), CASES)
def test_a_copy_shares_nothing_and_goes_on_with_the_same_bits(agent_class, learner, way):
    model = make(agent_class, learner=learner).learn(40)
    twin, untouched = WAYS[way](model), WAYS[way](model)
    before = fingerprint(model)
    twin.learn(25, reset_num_timesteps=False)
    assert fingerprint(twin) != before
    assert fingerprint(model) == fingerprint(untouched) == before  # what one learns does not change the other
    model.learn(25, reset_num_timesteps=False)
    assert fingerprint(model) == fingerprint(twin)
    assert model.replay_buffer.rewards.tolist() == twin.replay_buffer.rewards.tolist()
    seen = observations_of(model)
    for deterministic in (True, False):
        np.testing.assert_array_equal(*(each.predict(seen, deterministic=deterministic)[0] for each in (model, twin)))


@pytest.mark.parametrize(
    ("way", "learner"),
    [
        ("deepcopy", "native"),
        ("cloudpickle", "torch"),
        pytest.param("deepcopy", "torch", marks=pytest.mark.full),
        pytest.param("cloudpickle", "native", marks=pytest.mark.full),
    ],
)
def test_a_copy_acts_by_the_actor_that_it_trains(way, learner):
    """Rewarded for one action only, the copy comes to prefer it; the original never hears of it."""
    model = make(learner=learner, learning_rate=0.01, trust_region=1.0).learn(20)
    twin = WAYS[way](model)
    twin.learn(100)
    seen = observations_of(model)
    learned = twin.agent_learner.learner.policy(twin.policy.scales.inputs(seen) if learner == "native" else seen)
    np.testing.assert_allclose(twin.agent_learner.probabilities(seen), learned, atol=1e-5)
    np.testing.assert_allclose(twin.policy.probabilities(seen), learned, atol=1e-5)
    assert learned[:, 1].mean() > model.policy.probabilities(seen)[:, 1].mean() + 0.1


@pytest.mark.parametrize("way", WAYS)
def test_copies_of_wrapped_environments(way):
    """Pictures are turned round by a wrapper, and VecNormalize's statistics are part of what was learned."""
    picture = Walk(spaces.Box(0, 255, (36, 36, 1), np.uint8))
    model = make(env=picture, policy="CnnPolicy", train_freq=10, fit_steps=1).learn(20)
    twin = WAYS[way](model)
    for each in (model, twin):
        each.learn(10, reset_num_timesteps=False)
    assert fingerprint(model) == fingerprint(twin)

    normalized = make(env=VecNormalize(make_vec_env(Walk, n_envs=2))).learn(40)
    twin = WAYS[way](normalized)
    for each in (normalized, twin):
        each.learn(20, reset_num_timesteps=False)
    assert fingerprint(normalized) == fingerprint(twin)
    one, other = (each.get_vec_normalize_env() for each in (normalized, twin))
    assert one is not other
    np.testing.assert_array_equal(one.obs_rms.mean, other.obs_rms.mean)
    np.testing.assert_array_equal(one.returns, other.returns)


def test_files_stay_the_originals(tmp_path):
    model = make(journal=tmp_path / "journal.sqlite", autosave=tmp_path / "model.zip").learn(20)
    twin = copy.deepcopy(model)
    twin.learn(20)
    assert (twin.journal, twin.autosave) == (None, None)
    assert len(list(model.collector.journal.steps())) == 20
    model.close_journal()


@pytest.mark.full
def test_a_copy_has_no_environments_of_other_processes():
    processes = make_vec_env(Walk, n_envs=2, vec_env_cls=SubprocVecEnv)
    twin = copy.deepcopy(make(env=processes).learn(20))
    assert twin.get_env() is None
    twin.set_env(make_vec_env(Walk, n_envs=2))
    twin.learn(20)
    processes.close()


def test_an_agent_that_learns_in_the_background_says_that_it_cannot_be_copied():
    model = make()
    model.start_learning()
    with pytest.raises(RuntimeError, match="stop_learning"):
        copy.deepcopy(model)
    model.stop_learning()
    copy.deepcopy(model)


@pytest.mark.parametrize(("agent_class", "learner"), CASES)
def test_set_parameters_takes_a_changed_policy(agent_class, learner):
    model, other = (make(agent_class, learner=learner).learn(steps) for steps in (30, 60))
    params = model.get_parameters()
    changed = copy.deepcopy(params)
    for name, tensor in changed["policy"].items():
        if name not in ("observation_shift", "observation_factor", "return_scale", "active"):
            changed["policy"][name] = tensor + 0.5 * torch.rand_like(tensor)
    model.set_parameters(changed)
    for name, tensor in changed["policy"].items():
        torch.testing.assert_close(model.policy.state_dict()[name], tensor)
    assert model.agent_learner.followed() or model.agent_learner.actor_parameters.equal(
        torch.nn.utils.parameters_to_vector(model.policy.actor.parameters())
    )
    model.set_parameters(params)  # both of them, as they were
    other.set_parameters(params)
    assert fingerprint(model) == fingerprint(other)
    only_policy = {"policy": changed["policy"]}
    with pytest.raises(ValueError, match="do not fit"):
        other.set_parameters(only_policy)
    other.set_parameters(only_policy, exact_match=False)
    for name, tensor in changed["policy"].items():
        torch.testing.assert_close(other.policy.state_dict()[name], tensor)


def test_set_parameters_takes_a_changed_learner():
    model = make().learn(30)
    params = copy.deepcopy(model.get_parameters())
    params["agent_learner"]["actor.parameters"] += 0.5
    model.set_parameters(params)
    torch.testing.assert_close(model.agent_learner.actor_parameters, params["agent_learner"]["actor.parameters"])


class OnnxablePolicy(torch.nn.Module):
    """What Stable-Baselines3's documentation on exporting has users write."""

    def __init__(self, policy: Any) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, observation: Any) -> Any:
        return self.policy(observation, deterministic=True)


@pytest.mark.parametrize(("agent_class", "learner"), CASES)
def test_traced_policies_act_as_the_model_does(agent_class, learner):
    model = make(agent_class, learner=learner, **QUICK).learn(18)
    seen = observations_of(model)
    expected = model.predict(seen, deterministic=True)[0]
    assert len(set(expected.tolist())) > 1 or agent_class is TabularBDPI
    inputs = torch.as_tensor(seen)
    for module in (OnnxablePolicy(model.policy), model.policy):
        traced = torch.jit.trace(module.eval(), inputs[:1])
        frozen = torch.jit.freeze(traced)
        np.testing.assert_array_equal(traced(inputs).numpy(), expected)
        np.testing.assert_array_equal(frozen(inputs).numpy(), expected)


@pytest.mark.parametrize(
    ("agent_class", "dynamo"),
    [(BDPI, True), (BDPI, False), (ABCDQN, False), pytest.param(ABCDQN, True, marks=pytest.mark.full)],
)
@pytest.mark.parametrize("learner", ["native", "torch"])
def test_the_documented_recipe_for_onnx(agent_class, dynamo, learner, tmp_path):
    model = make(agent_class, learner=learner).learn(18)
    path = str(tmp_path / "model.onnx")
    first = torch.zeros(1, *model.observation_space.shape)
    kwargs = {"dynamic_shapes": None, "dynamo": True} if dynamo else {"dynamo": False}
    torch.onnx.export(OnnxablePolicy(model.policy), first, path, opset_version=18, input_names=["input"], **kwargs)
    session = onnxruntime.InferenceSession(path)
    for observation in observations_of(model, 20):
        (action,) = session.run(None, {"input": observation[None]})
        assert action == model.predict(observation, deterministic=True)[0]
    copy.deepcopy(model)  # is whole: nothing of the export stays in the model
    torch.jit.trace(model.policy, first)


@pytest.mark.parametrize("agent_class", [BDPI, ABCDQN])
def test_a_compiled_policy_is_saved_under_its_own_names(agent_class, tmp_path):
    model = make(agent_class).learn(30)
    seen = observations_of(model)
    expected = model.predict(seen, deterministic=True)[0]
    model.policy = torch.compile(model.policy)
    model.save(tmp_path / "model")
    loaded = agent_class.load(tmp_path / "model", env=Walk())
    np.testing.assert_array_equal(loaded.predict(seen, deterministic=True)[0], expected)
    assert fingerprint(model) == fingerprint(loaded)
    model.learn(20)
    model.set_parameters(tmp_path / "model.zip")
    np.testing.assert_array_equal(model.predict(seen, deterministic=True)[0], expected)


@pytest.mark.parametrize(("agent_class", "learner"), CASES)
def test_policies_are_saved_and_loaded_without_their_model(agent_class, learner, tmp_path):
    extra = {"prior_scale": 2.0} if agent_class is BootstrappedDQN else {}
    model = make(agent_class, learner=learner, **extra).learn(60)
    seen = observations_of(model)
    expected = model.policy.predict(seen, deterministic=True)[0]
    model.policy.save(tmp_path / "policy.pt")
    policy = model.policy_class.load(tmp_path / "policy.pt")
    np.testing.assert_array_equal(policy.predict(seen, deterministic=True)[0], expected)
    assert policy.state_dict().keys() == model.policy.state_dict().keys()
    fresh = make(agent_class, learner=learner, **extra)
    fresh.policy.load_state_dict(model.policy.state_dict())
    np.testing.assert_array_equal(fresh.policy.predict(seen, deterministic=True)[0], expected)
    twin = copy.deepcopy(model.policy)
    model.learn(60)
    np.testing.assert_array_equal(twin.predict(seen, deterministic=True)[0], expected)


@pytest.mark.parametrize("agent_class", AGENTS)
@pytest.mark.parametrize("deterministic", [True, False])
def test_predict_returns_arrays(agent_class, deterministic):
    model = make(agent_class)
    one, state = model.predict(observations_of(model)[0], deterministic=deterministic)
    assert isinstance(one, np.ndarray)
    assert one.shape == ()
    assert model.predict(observations_of(model, 3), deterministic=deterministic)[0].shape == (3,)
    if state is not None:
        model.predict(observations_of(model)[0], state)


def test_policies_go_through_pickles_of_streams():
    stream = io.BytesIO()
    torch.save(make().policy.state_dict(), stream)
    stream.seek(0)
    make().policy.load_state_dict(torch.load(stream))
