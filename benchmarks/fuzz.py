"""Fuzz the readers of each kind of file, guided by coverage, and log what was found; needs `pip install atheris`.

    python benchmarks/fuzz.py                            all kinds, one after the other, into results/robust/
    python benchmarks/fuzz.py agent --minutes 10 --runs 0

Files that must not be (see tests/fuzz/watched.py) are kept in --found; put what was mended into tests/fuzz/corpus,
which `make test` reads again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
FUZZ = ROOT / "tests" / "fuzz"
LOG = ROOT / "results" / "robust" / "fuzz_kinds.md"
NAMES = (
    "agent",
    "replay",
    "peer",
    "journal",
    "export",
    "parquet",
    "run",
    "study",
    "results",
    "archive",
    "task",
    "served",
)
_ROW = "| {kind} | {runs} | {seconds:.0f} | {read} | {coverage} | {findings} | {memory} | {slowest:.2f} |\n"
_HEAD = """# Mutated files of each kind

Made by `python benchmarks/fuzz.py`, {date}: atheris {version}, Python {python}, one process at a time.
Memory: the most that any file took beside the program itself, whose modules take 250 to 550 MB. Slowest: seconds of the
processor for one file. Coverage: branches of the package that were seen by libFuzzer. A finding is any outcome but
"read" or an error of the documented kind that the package raised, more than 600 MB, more than 10 s, code that is run,
or a file that is written elsewhere.

| kind | files | seconds | of these read | coverage | findings | most memory, MB | slowest, s |
|---|---|---|---|---|---|---|---|
"""


def fuzz(kind: str, runs: int, seconds: int, found: Path) -> None:
    """Fuzz one kind, for ever or until it is enough; figures are kept in ``found``."""
    for name in ("OMP_NUM_THREADS", "BDPI_NUM_THREADS"):
        os.environ[name] = "1"
    # atheris sees what Python imports by itself, not what an editable installation does.
    sys.path[:0] = [str(FUZZ), str(ROOT / "src")]
    sys.meta_path.sort(key=lambda finder: "Redirecting" in type(finder).__name__)
    import atheris

    shared = "/dev/shm" if Path("/dev/shm").is_dir() else None  # nothing has to reach a disk
    home = Path(tempfile.mkdtemp(dir=shared))
    corpus, folder = home / "corpus", home / "use"
    corpus.mkdir()
    with atheris.instrument_imports(include=["bdpi", "zipfile", "yaml"]):
        import mutations
        import watched
        from kinds import KINDS

        examples = KINDS[kind].examples(_made(home / "made"))
        for example in examples:  # imports what is imported late
            outcome = watched.use(kind, example, folder)
            assert not outcome.said
            assert not outcome.finding, outcome.finding
    cases = [file.read_bytes() for file in sorted((FUZZ / "corpus" / kind).glob("*.zip"))]
    for number, example in enumerate([*examples, *cases]):
        (corpus / f"{number}").write_bytes(example)
    figures = {"runs": 0, "read": 0, "memory": 0, "slowest": 0.0}
    findings: dict[str, str] = {}
    began = time.monotonic()

    def one(data: bytes) -> None:
        if not data.startswith(b"PK"):  # libFuzzer begins with nothing
            return
        outcome = watched.use(kind, data, folder)
        figures["runs"] += 1
        figures["read"] += not (outcome.said or outcome.finding)
        figures["memory"] = max(figures["memory"], outcome.memory >> 20)
        figures["slowest"] = max(figures["slowest"], outcome.seconds)
        where = re.sub(r"[0-9.]+ (s|MB)$", "", outcome.finding.split(": ")[0])
        if where and where not in findings:
            findings[where] = outcome.finding
            (found / f"{kind}-{hashlib.sha256(data).hexdigest()[:12]}.zip").write_bytes(data)
            print(f"FOUND {outcome.finding}", flush=True)
        enough = figures["runs"] == runs or time.monotonic() - began > seconds
        if enough or figures["runs"] % 100 == 0:
            spent = {"seconds": time.monotonic() - began, "findings": findings}
            (found / f"{kind}.json").write_text(json.dumps({**figures, **spent}))
        if enough:
            os._exit(0)

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        rng = random.Random(seed)
        if rng.random() < 0.5:  # damage on damage is refused early
            data = rng.choice(examples)
        try:
            changed = mutations.mutate(data, rng, atheris.Mutate)
        except Exception:  # libFuzzer has made something else of it
            return rng.choice(examples)
        return changed if len(changed) <= most else data

    most = 4 * max(map(len, [*examples, *cases]))
    options = [f"-max_len={most}", "-timeout=120", "-rss_limit_mb=4096", f"-artifact_prefix={found}/{kind}-crash-"]
    options += ["-mutate_depth=1", "-reduce_inputs=0", "-len_control=0", "-use_value_profile=1"]
    atheris.Setup([sys.argv[0], *options, str(corpus)], one, custom_mutator=mutate)
    atheris.Fuzz()


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def measure(kind: str, runs: int, minutes: float, found: Path) -> None:
    """Fuzz one kind in a process of its own, which a crash or a hang may end."""
    command = [sys.executable, __file__, kind, "--runs", str(runs), "--minutes", str(minutes), "--found", str(found)]
    with (found / f"{kind}.txt").open("w") as file:
        status = subprocess.run([*command, "--inside"], stdout=file, stderr=file).returncode
    if status:
        figures = json.loads((found / f"{kind}.json").read_text())
        figures["findings"][f"the process ended with {status}"] = f"see {kind}.txt"
        (found / f"{kind}.json").write_text(json.dumps(figures))


def write_log(found: Path) -> None:
    """What was measured last of each kind."""
    import importlib.metadata

    version, python = importlib.metadata.version("atheris"), sys.version.split()[0]
    lines, notes = [_HEAD.format(date=time.strftime("%d %B %Y"), version=version, python=python)], []
    for kind in NAMES:
        if (found / f"{kind}.json").exists():
            figures = json.loads((found / f"{kind}.json").read_text())
            covered = re.findall(r"cov: (\d+)", (found / f"{kind}.txt").read_text(errors="replace"))
            findings = figures.pop("findings")
            row = {"kind": kind, "coverage": covered[-1] if covered else "?", "findings": len(findings), **figures}
            lines.append(_ROW.format(**row))
            notes += [f"- {kind}: {text}\n" for text in findings.values()]
    LOG.write_text("".join([*lines, *(["\nFindings:\n\n", *notes] if notes else [])]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(NAMES)}; all by default")
    parser.add_argument("--runs", type=int, default=10_000, help="files of each kind; 0: as many as there is time for")
    parser.add_argument("--minutes", type=float, default=10.0, help="for each kind, at most")
    parser.add_argument("--found", type=Path, default=Path("build/fuzz"), help="folder for what is found")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    given.found.mkdir(parents=True, exist_ok=True)
    if given.inside:
        fuzz(given.kinds[0], given.runs, round(60 * given.minutes), given.found)
    for kind in given.kinds or NAMES:
        measure(kind, given.runs, given.minutes, given.found)
        write_log(given.found)


if __name__ == "__main__":
    main()
