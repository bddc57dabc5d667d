"""What an environment needs is named before it is made."""

import sys

import pytest
from gymnasium.error import DependencyNotInstalled

import bdpi


def test_without_box2d_the_extra_is_named(monkeypatch):
    bdpi.BDPI("MlpPolicy", "LunarLander-v3", n_critics=1)  # with it, all is well
    monkeypatch.delitem(sys.modules, "Box2D", raising=False)
    monkeypatch.setattr(sys, "path_importer_cache", {})
    monkeypatch.setattr(sys, "path", [])  # where nothing is installed
    with pytest.raises(DependencyNotInstalled, match=r"LunarLander-v3 needs Box2D.*bdpi\[box2d\]"):
        bdpi.BDPI("MlpPolicy", "LunarLander-v3", n_critics=1)
    bdpi.BDPI("MlpPolicy", "CartPole-v1", n_critics=1)
