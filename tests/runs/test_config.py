"""What config.json holds."""

import json
from pathlib import Path
from typing import Any

import pytest

from bdpi.runs.config import OfflineConfig, Place, RunConfig, RunRecord, RunStatus
from bdpi.runs.errors import RunError
from bdpi.runs.folder import RunFolder

ARCHIVES = Path(__file__).parents[2] / "results"


def written(folder: Path, **changes: Any) -> RunFolder:
    """A sound file with other values."""
    run = RunFolder(folder)
    run.write(RunRecord(RunConfig(environment="CartPole-v1"), RunStatus(status="running")))
    run.config.write_text(json.dumps(json.loads(run.config.read_text()) | changes))
    return run


@pytest.mark.parametrize("archive", sorted(ARCHIVES.rglob("runs.json")), ids=lambda path: path.parent.name)
def test_archived_runs_are_read_and_written_as_they_are(archive: Path) -> None:
    for run in json.loads(archive.read_text())["runs"]:
        record = RunRecord.parse(run["config"], archive)
        assert json.loads(json.dumps(record.as_dict())) == {"schema_version": 1, **run["config"]}


def test_only_what_is_known_of_a_run_is_written() -> None:
    status = RunStatus(status="running", result=None, study=Place("s", "r", "CartPole-v1", "BDPI", 0))
    known = RunRecord(RunConfig(environment="CartPole-v1"), status).as_dict()
    unused = {"env_kwargs", "wrappers", "n_envs", "eval_every", "eval_episodes", "film_every"}
    unused |= {"remember_tests"}
    assert set(known) == {"schema_version", *RunConfig.model_fields, "status", "result", "study"} - unused
    several = RunConfig(environment="CartPole-v1", n_envs=2, env_kwargs={"gain": (1, 2)})
    used = RunRecord(several, status).as_dict()
    assert used.keys() - known.keys() == {"n_envs", "env_kwargs"}
    assert RunRecord.parse(json.dumps(used).encode(), "here").config == several
    offline = RunRecord(OfflineConfig(journal="robot.sqlite"), RunStatus(status="running")).as_dict()
    assert offline["environment"] is None
    assert "episodes" not in offline


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("seed", "5"),
        ("seed", True),
        ("agent", None),
        ("steps", 10),  # and episodes
        ("off_policy_noise", 2.0),
        ("n_envs", 0),
        ("env_kwargs", ["gain"]),
        ("wrappers", [3]),
        ("evaluations", -1),
        ("hyperparameters", []),
        ("status", "odd"),
        ("result", {"episodes": 3}),
        ("result", 3),
        ("checkpoint", 1.5),
        ("resumed", [3]),
        ("study", {"study": 1}),
        ("configuration", {"n_critics": [2, 2]}),
        ("versions", ["numpy"]),
    ],
)
def test_a_wrong_value_is_named_with_its_file(tmp_path: Path, name: str, value: Any) -> None:
    folder = written(tmp_path, **{name: value})
    with pytest.raises(RunError, match=rf"config\.json .*{name.split('_')[0]}.*(correct it|another copy)"):
        folder.read()


def test_another_version_of_the_schema_is_refused(tmp_path: Path) -> None:
    assert written(tmp_path, schema_version=1).read() == written(tmp_path).read()
    with pytest.raises(RunError, match="schema_version 2"):
        written(tmp_path, schema_version=2).read()


@pytest.mark.parametrize("length", [{"episodes": None}, {"episodes": 0}, {"steps": 5}, {"episodes": None, "steps": 0}])
def test_a_run_has_episodes_or_steps(length: dict[str, Any]) -> None:
    with pytest.raises(RunError, match="episodes"):
        RunConfig(environment="CartPole-v1", **length)
    with pytest.raises(RunError, match="episodes"):
        RunConfig(environment="CartPole-v1").changed(**length)
