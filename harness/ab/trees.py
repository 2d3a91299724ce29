"""A work tree of each commit, beside the one that somebody works in; uncommitted work becomes a commit of no branch.

Trees lie under ``artifacts/ab/trees`` and are used again: a tree is its commit and never changed.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import UsageError

WORKTREE = "WORKTREE"
FOLDER = Path("artifacts/ab")
_NAMED = 12
_NOBODY = {
    "GIT_AUTHOR_NAME": "harness ab",
    "GIT_AUTHOR_EMAIL": "ab@localhost",
    "GIT_COMMITTER_NAME": "harness ab",
    "GIT_COMMITTER_EMAIL": "ab@localhost",
}


@dataclass(frozen=True, slots=True)
class Source:
    """One side's source. ``commit`` is what is checked out; for uncommitted work it is a snapshot on top of ``parent``.

    ``dirty_digest`` is the snapshot's tree id: equal digests, equal work trees. ``note`` is what a person should know.
    """

    name: str
    commit: str
    parent: str = ""
    dirty_digest: str = ""
    note: str = ""

    @property
    def label(self) -> str:
        """``main (0123456789ab)``, or ``0123456789ab + dirty 456789abcdef``."""
        if self.dirty_digest:
            return f"{self.parent[:_NAMED]} + dirty {self.dirty_digest[:_NAMED]}"
        return f"{self.name} ({self.commit[:_NAMED]})"


@contextlib.contextmanager
def repository(root: Path) -> Iterator[Any]:
    """The git repository at ``root`` (GitPython). ``UsageError`` where there is none."""
    os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")
    git: Any = importlib.import_module("git")
    try:
        with git.Repo(root) as repo:
            yield repo
    except (git.InvalidGitRepositoryError, git.NoSuchPathError):
        raise UsageError(f"{root} is no git work tree", "run from the repository's root") from None
    except git.GitCommandNotFound:
        raise UsageError("there is no git program on the path", "install git") from None


def resolve(repo: Any, name: str) -> Source:
    """What ``name`` means: a commit, or ``WORKTREE`` for what lies in the work tree now."""
    if name == WORKTREE:
        return _snapshot(repo)
    git: Any = importlib.import_module("git")
    try:
        commit = str(repo.git.rev_parse("--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}"))
    except git.GitCommandError:
        shallow = (Path(repo.git_dir) / "shallow").exists()
        hint = "this clone is shallow: git fetch --unshallow" if shallow else "git log --oneline lists some; git fetch?"
        raise UsageError(
            f"there is no commit {name!r} here", f"give a commit, a branch or {WORKTREE}; {hint}"
        ) from None
    changed = name == "HEAD" and bool(repo.git.status("--porcelain"))
    return Source(name, commit, note=f"uncommitted changes are not in HEAD: say {WORKTREE} for them" if changed else "")


def _snapshot(repo: Any) -> Source:
    """A commit of everything that git does not ignore, made with an index of its own: yours is not touched."""
    _refuse_dirty_submodules(repo)
    head = str(repo.git.rev_parse("--verify", "HEAD^{commit}"))
    with tempfile.TemporaryDirectory(prefix="harness-ab-") as folder:
        with repo.git.custom_environment(GIT_INDEX_FILE=str(Path(folder) / "index")):
            repo.git.read_tree(head)
            repo.git.add("-A")
            tree = str(repo.git.write_tree())
        if tree == str(repo.git.rev_parse(f"{head}^{{tree}}")):
            return Source(WORKTREE, head, note="the work tree is HEAD, unchanged")
        when = str(repo.git.log("-1", "--format=%cI", head))  # so that equal trees give equal commits
        with repo.git.custom_environment(**_NOBODY, GIT_AUTHOR_DATE=when, GIT_COMMITTER_DATE=when):
            commit = str(repo.git.commit_tree(tree, "-p", head, "-m", "uncommitted work, for harness ab"))
    return Source(WORKTREE, commit, head, tree)


def _refuse_dirty_submodules(repo: Any) -> None:
    for line in str(repo.git.status("--porcelain=v2", "--ignore-submodules=none")).splitlines():
        fields = line.split(maxsplit=8)
        if len(fields) == 9 and fields[0] == "1" and fields[2].startswith("S") and fields[2] not in ("S...", "SC.."):
            raise UsageError(
                f"submodule {fields[8]} has uncommitted changes of its own, which a snapshot cannot hold",
                f"commit them in {fields[8]} first, or compare commits",
            )


def check_out(repo: Any, source: Source, root: Path) -> Path:
    """The work tree of ``source`` under ``root``, made anew unless it is there unchanged; submodules included."""
    place = root / FOLDER / "trees" / source.commit[:_NAMED]
    git: Any = importlib.import_module("git")
    try:
        if not _is_there(place, source.commit):
            repo.git.worktree("prune")
            repo.git.worktree("add", "--detach", "--force", str(place), source.commit)
        if (place / ".gitmodules").exists():
            with git.Repo(place) as tree:
                tree.git.submodule("update", "--init", "--recursive")
    except git.GitCommandError as error:
        said = str(error.stderr).strip().removeprefix("stderr:").strip(" '\n")
        raise UsageError(f"{source.label} cannot be checked out: {said}", f"look at {place}, or remove it") from None
    return place


def forget(repo: Any) -> None:
    """Let git forget the work trees whose folders are gone."""
    repo.git.worktree("prune")


def _is_there(place: Path, commit: str) -> bool:
    """Whether ``place`` holds ``commit`` and nothing else that git knows of."""
    if not (place / ".git").exists():
        return False
    git: Any = importlib.import_module("git")
    with git.Repo(place) as tree:
        at = str(tree.git.rev_parse("HEAD"))
        changed = str(tree.git.status("--porcelain", "--untracked-files=no"))
    if at != commit or changed:
        raise UsageError(f"{place} is not as `python -m harness ab` left it", f"git worktree remove --force {place}")
    return True


def history(repo: Any, good: str, bad: str) -> list[str]:
    """Commits after ``good`` up to ``bad``, oldest first, along first parents. ``UsageError`` where there is no way."""
    commits = str(repo.git.rev_list("--first-parent", "--reverse", f"{good}..{bad}")).split()
    ancestors = repo.is_ancestor(repo.commit(good), repo.commit(bad))
    if not commits or not ancestors:
        raise UsageError(f"{good[:_NAMED]} is no ancestor of {bad[:_NAMED]}", "give GOOD and BAD of one history")
    return commits
