"""``--set name=value``."""

import pytest

from bdpi.agents import ABCDQN, AGENTS, BDPI, ActorMimic, BootstrappedDQN, Ensemble, TabularBDPI
from bdpi.runs.errors import RunError
from bdpi.runs.settings import parse_settings, settable


def test_values_are_python_literals_or_text() -> None:
    texts = ["n_critics = 8", "learning_rate=1e-3", "critics_per_step=none", "train_freq=(2,'episode')", "device=cpu"]
    hyperparameters, policy_kwargs = parse_settings([*texts, "buffer_size=1e5"], BDPI)
    expected = {"n_critics": 8, "learning_rate": 1e-3, "critics_per_step": None, "train_freq": (2, "episode")}
    assert hyperparameters == {**expected, "device": "cpu", "buffer_size": 100_000}
    assert isinstance(hyperparameters["buffer_size"], int)
    assert policy_kwargs == {}
    networks = parse_settings(["net_arch=[64,64]", "activation_fn=relu", "normalize_images=false"], BDPI)
    assert networks == ({}, {"net_arch": [64, 64], "activation_fn": "relu", "normalize_images": False})
    assert parse_settings(["net_arch={'pi':[32],'qf':[64]}"], BDPI)[1] == {"net_arch": {"pi": [32], "qf": [64]}}


@pytest.mark.parametrize("agent_class", AGENTS.values())
def test_every_agent_knows_the_common_settings(agent_class: type[Ensemble]) -> None:
    texts = ["gamma=0.9", "n_critics=8", "fit_steps=3", "device=cpu", "n_threads=1", "precision=bfloat16"]
    texts += ["net_arch=[8]"]
    hyperparameters, policy_kwargs = parse_settings(texts, agent_class)
    assert hyperparameters.pop("precision") == "bfloat16"
    assert hyperparameters == {"gamma": 0.9, "n_critics": 8, "fit_steps": 3, "device": "cpu", "n_threads": 1}
    assert policy_kwargs == {"net_arch": [8]}
    assert not {"policy", "env", "seed", "common", "kwargs", "self"} & set(settable(agent_class))


def test_every_agent_knows_its_own_settings_only() -> None:
    own = {
        "trust_region": {BDPI, TabularBDPI},
        "temperature": {ActorMimic},
        "prior_scale": {BootstrappedDQN},
        "actor_learning_rate": {BDPI, TabularBDPI, ActorMimic},
    }
    for name, classes in own.items():
        assert {cls for cls in AGENTS.values() if name in settable(cls)} == classes
    assert settable(BootstrappedDQN)["critic_iterations"].default == 1  # the derived class decides on a default
    assert settable(ABCDQN)["critic_iterations"].default == 4
    with pytest.raises(RunError, match="knows no 'trust_region'"):
        parse_settings(["trust_region=0.1"], ABCDQN)


def test_arguments_that_no_constructor_passes_on_are_not_settable() -> None:
    class Root:
        def __init__(self, hidden: int = 1) -> None: ...

    class Middle(Root):
        def __init__(self, policy: str, env: str, shared: int = 2, **others: int) -> None: ...

    class Closed(Middle):
        def __init__(self, policy: str, env: str, shared: int = 3) -> None: ...

    class Leaf(Closed):
        def __init__(self, own: int = 4, **common: int) -> None: ...

    assert {name: parameter.default for name, parameter in settable(Leaf).items()} == {"shared": 3, "own": 4}
    assert set(settable(Middle)) == {"hidden", "shared"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("n_critics", "name=value"),
        ("=8", "name=value"),
        ("n_critics=", "name=value"),
        ("n_critic=8", "did you mean n_critics"),
        ("bogus=8", "Valid names: learning_rate, "),
        ("seed=8", "use --seed"),
        ("verbose=1", "knows no 'verbose'"),
        ("_init_setup_model=False", "knows no"),
        ("n_critics=eight", "must be a number (its default is 16)"),
        ("critics_per_step=eight", "must be a number"),
        ("n_critics=True", "must be a number"),
        ("net_arch=64", "list of layer sizes"),
        ("net_arch=[0]", "list of layer sizes"),
        ("net_arch={'pi':[32]}", "list of layer sizes"),
        ("activation_fn=gelu", "tanh or relu"),
        ("normalize_images=0", "must be True or False"),
    ],
)
def test_wrong_settings_are_explained_in_one_line(text: str, says: str) -> None:
    with pytest.raises(RunError) as error:
        parse_settings([text], BDPI)
    assert says in str(error.value)
    assert "\n" not in str(error.value)
