"""What changes by itself depends on the environment, not on how its id is written."""

import pytest

from bdpi.runs.presets import PRESETS, preset_of


@pytest.mark.parametrize("environment", ["LunarLander-v3", "gymnasium:LunarLander-v3", "LunarLander"])
def test_an_environment_has_its_preset_by_any_of_its_names(environment: str) -> None:
    assert preset_of(environment) is PRESETS["LunarLander-v3"]


@pytest.mark.parametrize("environment", ["LunarLander-v2", "Acrobot-v1", "no_module:NoSuch-v0", "a/b-v0"])
def test_others_have_none(environment: str) -> None:
    assert preset_of(environment).policy_kwargs == {}
