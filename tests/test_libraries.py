"""Other libraries run with BDPI, those that the tests install; docs/ecosystem.md has all of them."""

import pytest

from clients import CLIENTS, tried


@pytest.mark.parametrize("package", ["sb3-contrib", "minigrid", "gymnasium", "minari", "optuna", "onnxruntime"])
def test_a_client_runs(package, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    CLIENTS[package]()


def test_what_is_not_installed_is_not_tried():
    assert tried("no-such-package") is None
