"""Saved agents: what can be found out about a file before anything in it is run."""

from __future__ import annotations

import io
import json
import pathlib
import zipfile

from stable_baselines3.common.save_util import open_path


def check_agent_file(path: str | pathlib.Path | io.BufferedIOBase, class_name: str) -> None:
    """Whether the file is whole and says that it holds an agent of this class.

    :raises ValueError: if it does not
    """
    try:
        file = open_path(path, "r", verbose=0, suffix="zip")
        with zipfile.ZipFile(file) as archive:
            broken = archive.testzip()
            if broken is not None:
                raise ValueError(f"{path} is damaged: the checksum of {broken!r} is wrong")
            saved = json.loads(archive.read("data")) if "data" in archive.namelist() else {}
    except (zipfile.BadZipFile, json.JSONDecodeError, UnicodeDecodeError, EOFError) as error:
        raise ValueError(f"{path} is not a saved agent, or it is damaged: {error}") from error
    finally:
        if isinstance(path, io.BufferedIOBase):
            path.seek(0)
    saved_class = saved.get("agent_class") if isinstance(saved, dict) else None
    if saved_class != class_name:
        what = f"an agent of class {saved_class}" if saved_class else "no bdpi agent, or is damaged"
        raise ValueError(f"{path} holds {what}; {class_name}.load reads what {class_name}.save wrote")
