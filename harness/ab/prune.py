"""What `harness ab` built and nobody used for long goes: work trees, environments, native libraries. Evidence stays.

A folder that is used is touched, so its time says when it last was. Gone are those that nobody used for ``DAYS``, and
then the longest unused while all of them together are larger than ``MOST_GIB``; what was used within the last day
stays, since another session may be at it. Sessions and bundles are never touched.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.ab.trees import FOLDER, forget, repository
from harness.files import writing

KINDS = ("trees", "venvs", "native")
DAYS, MOST_GIB = 14.0, 8.0
_DAY_S, _GIB = 86400.0, 2.0**30


@dataclass(frozen=True, slots=True)
class Kept:
    """A folder that was built: seconds since it was last used, and its bytes on the disk."""

    path: Path
    unused_s: float
    size: int


def used(path: Path) -> None:
    """Note that a folder is used now."""
    with writing(path):
        os.utime(path)


def built_folders(root: Path, now: float) -> list[Kept]:
    """Everything that could go, the longest unused first."""
    places = [path for kind in KINDS for path in (root / FOLDER / kind).glob("*") if path.is_dir()]
    found = [Kept(path, now - path.stat().st_mtime, _size(path)) for path in places]
    return sorted(found, key=lambda kept: -kept.unused_s)


def to_remove(kept: Sequence[Kept], days: float = DAYS, most_gib: float = MOST_GIB) -> list[Kept]:
    """Which of them go."""
    left = sum(one.size for one in kept)
    gone = []
    for one in sorted(kept, key=lambda one: -one.unused_s):
        if one.unused_s > _DAY_S and (one.unused_s > days * _DAY_S or left > most_gib * _GIB):
            gone.append(one)
            left -= one.size
    return gone


def prune(root: Path, now: float | None = None) -> list[str]:
    """Remove them; a sentence each."""
    gone = to_remove(built_folders(root, time.time() if now is None else now))
    for one in gone:
        with writing(one.path):
            shutil.rmtree(one.path)
    if gone:
        with repository(root) as repo:
            forget(repo)
    return [
        f"removed {one.path.relative_to(root)}, unused for {one.unused_s / _DAY_S:.0f} days ({one.size / _GIB:.2f} GiB)"
        for one in gone
    ]


def _size(folder: Path) -> int:
    """Bytes on the disk; links are not followed."""
    return sum(
        (Path(place) / name).lstat().st_blocks * 512
        for place, _, names in os.walk(folder, followlinks=False)
        for name in names
    )
