"""Which source this is: commit, dirty digest, submodules; ``git.reason`` says why where it cannot be known.

Uses GitPython where it can be imported. Knows its pitfalls: a detached HEAD has no branch, a folder owned by somebody
else is refused by git (``safe.directory``; never overridden here), its children are closed with the repository.
"""

from __future__ import annotations

import hashlib
import importlib
import os
from pathlib import Path
from typing import Any

UNTRACKED_READ_LIMIT = 16 << 20  # larger untracked files enter the digest by name and size


def git_facts(root: Path) -> dict[str, str]:
    """Facts about the work tree at ``root``; ``git.commit`` is ``unknown`` beside a reason where git cannot tell."""
    os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")  # without a git binary the import would raise
    try:
        git: Any = importlib.import_module("git")
    except ImportError:
        return _unknown("GitPython is not installed")
    try:
        with git.Repo(root, search_parent_directories=True) as repo:
            return _facts(repo)
    except git.InvalidGitRepositoryError:
        return _unknown("this folder is no git work tree")
    except git.GitCommandNotFound:
        return _unknown("there is no git program on the path")
    except (git.GitCommandError, ValueError, OSError) as error:
        text = str(error)
        if "dubious ownership" in text or "safe.directory" in text:
            return _unknown(
                "git refuses a work tree owned by somebody else: git config --global --add safe.directory <root>"
            )
        return _unknown(text.strip().splitlines()[0] if text.strip() else type(error).__name__)


def _unknown(reason: str) -> dict[str, str]:
    return {"git.commit": "unknown", "git.reason": reason}


def _facts(repo: Any) -> dict[str, str]:
    call = repo.git
    try:
        commit = str(call.rev_parse("--verify", "HEAD^{commit}"))
    except Exception as error:
        if "dubious ownership" in str(error):
            raise
        return _unknown("the repository has no commit yet")
    facts = {"git.commit": commit, "git.detached": "yes" if repo.head.is_detached else "no"}
    status = call.status(
        "--porcelain=v1", "-z", "--untracked-files=all", "--ignore-submodules=none", strip_newline_in_stdout=False
    )
    facts["git.dirty"] = "yes" if status else "no"
    if status:
        facts["git.dirty_digest"] = dirty_digest(Path(repo.working_tree_dir), call, status)
    submodules = str(call.submodule("status", "--recursive")).splitlines()
    for line in submodules:
        sha, path = line.lstrip(" +-U").split()[:2]
        facts[f"git.submodule.{path}"] = sha + ("" if line.startswith(" ") or line[0].isalnum() else f" ({line[0]})")
    if (Path(repo.git_dir) / "shallow").exists():
        facts["git.shallow"] = "yes"
    return facts


def dirty_digest(top: Path, call: Any, status: str) -> str:
    """SHA-256 over the status, the difference to HEAD and the untracked files: equal digests, equal work trees."""
    digest = hashlib.sha256(status.encode("utf-8", "surrogateescape"))
    digest.update(call.diff("HEAD", "--binary", "--no-color", "--no-ext-diff", stdout_as_string=False))
    for name in sorted(entry[3:] for entry in status.split("\0") if entry.startswith("?? ")):
        path = top / name
        digest.update(f"\0{name}\0".encode("utf-8", "surrogateescape"))
        if path.is_symlink():
            digest.update(str(path.readlink()).encode("utf-8", "surrogateescape"))
        elif path.is_file():
            size = path.stat().st_size
            digest.update(path.read_bytes() if size <= UNTRACKED_READ_LIMIT else f"{size} bytes".encode())
    return digest.hexdigest()
