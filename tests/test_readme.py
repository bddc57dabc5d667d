"""The examples of README and docs/speed.md run as they are printed, only shorter."""

import re
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[1] / "README.md"
SPEED = README.parent / "docs" / "speed.md"


def test_the_example_trains_evaluates_saves_and_loads(tmp_path, monkeypatch, capsys):
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    assert "learn(20_000" in code
    shorter = code.replace("20_000", "280").replace("5_000", "30").replace("n_eval_episodes=100", "n_eval_episodes=2")
    monkeypatch.chdir(tmp_path)
    namespace = {}
    exec(compile(shorter, "README.md", "exec"), namespace)
    assert (tmp_path / "lake.zip").exists()
    assert namespace["agent"].num_timesteps == 310
    assert namespace["agent"]._n_updates == 310 - 255  # it went on learning from the first step after loading
    assert "return" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:each agent of this population")
def test_the_population_learns(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", SPEED.read_text(), flags=re.DOTALL)
    assert "n=16" in code
    assert "learn(10_000)" in code
    namespace = {}
    exec(compile(code.replace("n=16", "n=2").replace("10_000", "300"), "speed.md", "exec"), namespace)
    assert [agent.seed for agent in namespace["several"].agents] == [0, 1]
    assert len(eval(capsys.readouterr().out)) == 2


def test_it_is_short():
    assert len(README.read_text().splitlines()) <= 80


def test_every_make_target_it_names_exists():
    makefile = README.with_name("Makefile").read_text()
    targets = set(re.findall(r"^make ([a-z-]+)|`make ([a-z-]+)`", README.read_text(), flags=re.MULTILINE))
    targets = {first or second for first, second in targets}
    assert {"train", "test", "bench", "figures"} <= targets
    for target in targets:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target
