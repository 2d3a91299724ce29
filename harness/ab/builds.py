"""What a work tree needs to run: an interpreter with its dependencies, and its native library. Each is made once.

Both are named by a digest of what they follow from, so two commits that agree in it share them: the environment by
``constraints.txt`` and the dependencies in ``pyproject.toml``, the library by git's id of ``native/`` and by the
environment. A machine that cannot build (no compiler, no package index) is given libraries that were built elsewhere.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.ab.trees import FOLDER
from harness.errors import UsageError
from harness.files import sha256_file, writing

GROUPS = ("model",)
"""Dependency groups that a measured tree needs besides its dependencies; installed without their own."""

BUILT = ".built"
IMAGES = "device"
LIBRARY = "libsm70.so"
RECORD = "build.json"
TAIL_LINES = 30
_NAMED = 12
Run = Callable[[Sequence[str], Path], tuple[int, str]]
"""Runs a command in a folder; gives its exit code and what it said."""


class BuildFailed(UsageError):
    """One side cannot be built; the message ends with what the build said."""


@dataclass(frozen=True, slots=True)
class Build:
    """A side that can be run: its interpreter, and the digests of environment and library ("" where it has none).

    ``folders`` are those that were made for it and are shared by digest.
    """

    tree: Path
    python: Path
    environment: str
    native: str
    folders: tuple[Path, ...] = ()


def run_command(command: Sequence[str], cwd: Path) -> tuple[int, str]:
    """Run a command to its end, with its words caught."""
    variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=cwd, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return done.returncode, done.stdout


def build(
    tree: Path,
    root: Path,
    label: str,
    say: Callable[[str], None],
    run: Run = run_command,
    libraries: Mapping[Path, str] | None = None,
) -> Build:
    """Make ``tree`` runnable; ``root`` is the repository whose environment may be shared. Or ``BuildFailed``.

    With ``libraries`` (see `read_libraries`) nothing native is built: the tree gets the one that is of its sources.
    """
    digest = environment_digest(tree)
    python = _python(tree, root, digest, label, say, run)
    native = _native(tree, root, python, digest, label, say, run, libraries or {})
    made = [root / FOLDER / "venvs" / digest, *([root / FOLDER / "native" / native] if native else [])]
    return Build(tree, python, digest, native, tuple(folder for folder in made if (folder / BUILT).exists()))


def read_libraries(folders: Sequence[Path]) -> dict[Path, str]:
    """The digest of the sources that the library in each folder was built from, as its build record states it.

    ``UsageError`` where there is no record, or where the library is not the one that the record is of.
    """
    found = {}
    for folder in folders:
        try:
            record = json.loads((folder / RECORD).read_text())
            sources, library = str(record["source_digest"]), str(record["library_sha256"])
            here = sha256_file(folder / LIBRARY)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"--library {folder}: no library with a build record: {error}",
                f"give a folder that `python -m native.build --out` filled: {LIBRARY} and {RECORD}",
            ) from None
        if here != library:
            raise UsageError(f"--library {folder}: {LIBRARY} is not the one that {RECORD} is of", "copy both again")
        found[folder.resolve()] = sources
    return found


def environment_digest(tree: Path) -> str:
    """Digest of what an environment is installed from; the same for every tree without such files."""
    constraints = tree / "constraints.txt"
    pinned = constraints.read_text() if constraints.exists() else ""
    return hashlib.sha256(json.dumps([pinned, _requirements(tree)]).encode()).hexdigest()[:16]


def _requirements(tree: Path) -> dict[str, list[str]]:
    path = tree / "pyproject.toml"
    if not path.exists():
        return {}
    project: dict[str, Any] = tomllib.loads(path.read_text())
    groups = project.get("dependency-groups", {})
    return {
        "core": project.get("project", {}).get("dependencies", []),
        **{name: groups[name] for name in GROUPS if name in groups},
    }


def _python(tree: Path, root: Path, digest: str, label: str, say: Callable[[str], None], run: Run) -> Path:
    """The running interpreter where its environment is the same, else one of its own for this digest."""
    if digest == environment_digest(root):
        return Path(sys.executable)
    folder = root / FOLDER / "venvs" / digest
    python = folder / "bin" / "python"
    if (folder / BUILT).exists():
        return python
    say(f"{label}: its dependencies differ from those here: making an environment (minutes)")
    pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    if (tree / "constraints.txt").exists():
        pip += ["-c", "constraints.txt"]
    wanted = _requirements(tree)
    commands = [[sys.executable, "-m", "venv", "--clear", str(folder)], [*pip, *wanted.pop("core", [])]]
    commands += [[*pip, "--no-deps", *group] for group in wanted.values()]
    for command in commands:
        _must(run, command, tree, f"{label}: its environment cannot be made")
    _mark(folder)
    return python


def _native(
    tree: Path,
    root: Path,
    python: Path,
    environment: str,
    label: str,
    say: Callable[[str], None],
    run: Run,
    libraries: Mapping[Path, str],
) -> str:
    """Build the tree's library into a folder named by its sources; the tree finds it where it always looks."""
    if not (tree / "native" / "build.py").exists():
        return ""
    git: Any = importlib.import_module("git")
    with git.Repo(tree) as repo:
        sources = str(repo.git.rev_parse("HEAD:native"))
    digest = hashlib.sha256(f"{sources} {environment}".encode()).hexdigest()[:16]
    folder = root / FOLDER / "native" / digest
    if libraries:
        folder = _given(tree, python, label, run, libraries)
    elif not (folder / BUILT).exists():
        say(f"{label}: building its native library")
        _lend_images(folder, root / "artifacts" / "native" / IMAGES)
        command = [str(python), "-m", "native.build", "--out", str(folder)]
        _must(run, command, tree, f"{label}: its native library does not build")
        _mark(folder)
    link = tree / "artifacts" / "native"
    with writing(link):
        link.parent.mkdir(exist_ok=True)
        if not link.is_symlink() or link.resolve() != folder.resolve():
            link.unlink(missing_ok=True)
            link.symlink_to(folder.resolve(), target_is_directory=True)
    return digest


def _given(tree: Path, python: Path, label: str, run: Run, libraries: Mapping[Path, str]) -> Path:
    """The folder of the library that was built from the tree's sources, wherever that was."""
    asked = [str(python), "-c", "from native import build; print(build.source_digest())"]
    wanted = _must(run, asked, tree, f"{label}: the digest of its native sources cannot be told").strip()
    for folder, sources in libraries.items():
        if sources == wanted:
            return folder
    given = ", ".join(f"{folder} is of {sources[:_NAMED]}" for folder, sources in libraries.items())
    raise BuildFailed(f"{label}: no --library is of its native sources {wanted[:_NAMED]}; {given}")


def _lend_images(folder: Path, earlier: Path) -> None:
    """Begin with the device images built here: a build keeps those whose digest (sources, tools, flags) is its own."""
    with writing(folder):
        if earlier.is_dir() and not folder.exists():
            shutil.copytree(earlier, folder / IMAGES)


def _must(run: Run, command: Sequence[str], cwd: Path, what: str) -> str:
    code, said = run(command, cwd)
    if code:
        tail = "\n".join(said.strip().splitlines()[-TAIL_LINES:])
        raise BuildFailed(f"{what}: {' '.join(command)} ended with {code}:\n{tail}")
    return said


def _mark(folder: Path) -> None:
    with writing(folder / BUILT):
        (folder / BUILT).touch()
