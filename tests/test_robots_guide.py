"""The examples of docs/robots.md run as they are printed, one after the other."""

import re
import subprocess
import sys
from pathlib import Path

GUIDE = Path(__file__).resolve().parents[1] / "docs" / "robots.md"


def test_the_examples_run(tmp_path, monkeypatch):
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), flags=re.DOTALL)
    assert len(blocks) == 6
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    for number, code in enumerate(blocks):
        exec(compile(code, f"robots.md, example {number + 1}", "exec"), namespace)
    assert namespace["agent"].num_timesteps == 500
    assert len(namespace["agent"].replay_buffer) == 500
    # one epoch a step from the first batch on, the hundred in the background included
    assert namespace["agent"]._n_updates == 500 - 255
    assert namespace["agent"].epochs_due == 0
    assert namespace["student"]._n_updates == 1
    assert "lamp_act" in (tmp_path / "lamp.h").read_text()
    command = [sys.executable, "-m", "bdpi.cli", "export", "lamp.zip", "lamp.onnx"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "acts as the agent does" in done.stdout


def test_the_loop_is_short():
    first = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), flags=re.DOTALL)[0]
    loop = first[first.index("agent = ") :]
    assert len([line for line in loop.splitlines() if line.strip()]) <= 20
