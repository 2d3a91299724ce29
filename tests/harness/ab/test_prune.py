"""What nobody used for long goes, what is used stays, evidence always stays."""

from __future__ import annotations

import os
import time
from pathlib import Path

from harness.ab.prune import Kept, built_folders, prune, to_remove, used
from tests.harness.ab.project import Project

DAY = 86400.0
GIB = 2**30


def test_the_old_go_and_then_the_longest_unused_while_it_is_too_much() -> None:
    kept = [
        Kept(Path("old"), 15 * DAY, 1),
        Kept(Path("large"), 3 * DAY, 5 * GIB),
        Kept(Path("recent"), 2 * DAY, 5 * GIB),
        Kept(Path("today"), 0.5 * DAY, 20 * GIB),
    ]
    assert [one.path.name for one in to_remove(kept)] == ["old", "large", "recent"]
    assert [one.path.name for one in to_remove(kept[:3])] == ["old", "large"]
    assert to_remove(kept[2:3]) == []


def test_folders_go_and_git_forgets_them(project: Project) -> None:
    project.commit("only")
    ab = project.root / "artifacts" / "ab"
    project.git("worktree", "add", "--detach", str(ab / "trees" / "aaaa"), "HEAD")
    for name in ("venvs/bbbb", "native/cccc", "sessions/dddd"):
        (ab / name).mkdir(parents=True)
        (ab / name / "file").write_bytes(b"x" * 4096)
    for path in ab.glob("*/*"):
        os.utime(path, (0, time.time() - 20 * DAY))
    used(ab / "native" / "cccc")
    assert [kept.path.name for kept in built_folders(project.root, time.time())][-1] == "cccc"
    said = prune(project.root)
    assert sorted(line.split(",")[0] for line in said) == [
        "removed artifacts/ab/trees/aaaa",
        "removed artifacts/ab/venvs/bbbb",
    ]
    assert sorted(path.name for path in ab.glob("*/*")) == ["cccc", "dddd"]
    assert "aaaa" not in project.git("worktree", "list")
    assert prune(project.root) == []
