"""Installing without a compiler: sources learn with PyTorch, and say what is lost; a wheel learns natively."""

import os
import platform
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.full
def test_pip_install_without_a_compiler(tmp_path):
    python = tmp_path / "bin" / "python3"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    bare = {key: value for key, value in os.environ.items() if key not in ("CC", "CXX", "PYTHONPATH")}
    bare["PATH"] = str(python.parent)  # no compiler, no cmake, no make
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--disable-pip-version-check"]
    build = ["--config-settings=build-dir=" + str(tmp_path / "build"), "--target", str(tmp_path / "site"), str(ROOT)]
    result = subprocess.run([*command, *build], env=bare, capture_output=True, text=True)
    if "Could not find a version" in result.stderr:
        pytest.skip("the build tools cannot be downloaded here")
    assert result.returncode == 0, result.stderr
    assert not list((tmp_path / "site").rglob("_native*"))

    script = """
import warnings
import bdpi
from bdpi.export.c import c_header
from bdpi.learner import native
from bdpi.report.page import make_page
assert bdpi.__file__.startswith({site!r}), bdpi.__file__
assert not native.is_available()
assert make_page([], title="its templates are installed", command="").endswith("</html>\\n")
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    agent = bdpi.BDPI("MlpPolicy", "CartPole-v1", n_critics=1, fit_steps=1, batch_size=8)
print(*[warning.message for warning in caught])
agent.learn(20)
assert c_header(agent).endswith("_H */\\n")
print(agent.learner_name)
"""
    script = script.format(site=str(tmp_path / "site"))
    # An editable installation of the same package must not answer for it.
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    result = subprocess.run(
        [sys.executable, "-S", "-c", _WITHOUT_EDITABLE + script], env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    assert "falls back to PyTorch" in result.stdout
    assert "Install a C++ compiler" in result.stdout
    assert result.stdout.split()[-1] == "torch"


# -S leaves out the .pth files through which editable installations work; the other packages are still wanted.
_WITHOUT_EDITABLE = f"""
import sys
sys.path += {[path for path in sys.path if path.endswith("site-packages")]!r}
"""


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="manylinux wheels are for Linux")
def test_a_wheel_learns_natively_without_a_compiler(tmp_path):
    """In an environment of its own, with dependencies as pip finds them."""
    made = subprocess.run(
        ["make", "wheels", f"DIST={tmp_path}", f"PYTHON={sys.executable}"], cwd=ROOT, capture_output=True, text=True
    )
    if "Could not find a version" in made.stderr:
        pytest.skip("the build tools cannot be downloaded here")
    assert made.returncode == 0, made.stdout + made.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith(f"-manylinux_2_28_{platform.machine()}.whl")
    assert ("-cp312-abi3-" in wheel.name) == (sys.version_info >= (3, 12))  # one for all later versions, too
    names = zipfile.ZipFile(wheel).namelist()
    assert {"LICENSE", "nanobind.txt", "robin-map.txt"} <= {Path(name).name for name in names if "licenses" in name}
    assert not [name for name in names if ".libs/" in name]  # no library beside it: the C++ library is inside

    home = tmp_path / "environment"
    venv.create(home, with_pip=True)
    bare = {key: value for key, value in os.environ.items() if key not in ("CC", "CXX", "PYTHONPATH")}
    bare["PATH"] = str(home / "bin")  # no compiler, no cmake, no make
    install = ["-m", "pip", "install", "--no-compile", "--disable-pip-version-check"]
    subprocess.run([home / "bin/python", *install, "-c", ROOT / "constraints.txt", wheel], env=bare, check=True)
    script = f"""
import bdpi
assert bdpi.__file__.startswith({str(home)!r}), bdpi.__file__
agent = bdpi.BDPI("MlpPolicy", "CartPole-v1", n_critics=2, fit_steps=2, learning_starts=100)
agent.learn(300)
assert agent._n_updates > 40, agent._n_updates
print(agent.learner_name)
"""
    learned = subprocess.run([home / "bin/python", "-c", script], env=bare, cwd=home, capture_output=True, text=True)
    assert learned.stdout.split()[-1:] == ["native"], learned.stderr
