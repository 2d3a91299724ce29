"""Scopes taken over from sealed bundles: whole ones, or several shards of one, each with the proof of its origin.

A carried scope's files lie in ``scopes/<scope>/``, those of shards in ``scopes/<scope>/shards/<n>/``; beside them lies
the manifest of the bundle they were measured for. Its SHA-256 is that bundle's digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.bundles.bag import Bag
from harness.bundles.bundle import Bundle, put, scope_of
from harness.errors import UsageError
from harness.evidence import CARRIED_MANIFEST, SHARDS, join_folders
from harness.machine.environment import same_machine_facts
from harness.model import Origin, OriginKind, ScopeEvidence


@dataclass(frozen=True)
class Carried:
    """A scope of an earlier bundle."""

    bundle: Bundle
    scope: str

    @property
    def evidence(self) -> ScopeEvidence:
        """What the earlier bundle shows of the scope."""
        return scope_of(self.bundle, self.scope)

    @property
    def ran(self) -> bool:
        """False where the earlier bundle only says why it was not run."""
        return self.evidence.origin.kind is not OriginKind.NOT_RUN


@dataclass(frozen=True)
class Part:
    """One process's files in a bundle, and the manifest of the bundle they were measured for."""

    bag: Bag
    prefix: str
    manifest: bytes

    @property
    def folder(self) -> Path:
        """Where its files lie."""
        return self.bag.folder / "data" / self.prefix

    @property
    def digest(self) -> str:
        """That of the bundle they were measured for: the SHA-256 of its manifest."""
        return hashlib.sha256(self.manifest).hexdigest()


def parts_of(group: Sequence[Carried]) -> list[Part]:
    """Whose files a scope is made of: of the bundles that ran it, every shard by itself."""
    parts = [part for carried in group if carried.ran for part in _parts(carried)]
    digests = [part.digest for part in parts]
    twice = next((digest for digest in digests if digests.count(digest) > 1), "")
    if twice:
        raise UsageError(f"scope {group[0].scope} of bundle {twice[:12]} is given twice", "give each bundle once")
    return parts


def _parts(carried: Carried) -> list[Part]:
    bag, home = carried.bundle.bag, f"scopes/{carried.scope}/"
    inside = f"data/{home}{SHARDS}/"
    numbers = {path.removeprefix(inside).partition("/")[0] for path in bag.members if path.startswith(inside)}
    prefixes = [f"{home}{SHARDS}/{number}/" for number in sorted(numbers, key=int)] or [home]
    own = (bag.folder / "manifest-sha256.txt").read_bytes()
    return [
        Part(bag, prefix, bag.read(prefix + CARRIED_MANIFEST) if bag.has(prefix + CARRIED_MANIFEST) else own)
        for prefix in prefixes
    ]


def carried_scope(group: Sequence[Carried], common: dict[str, str]) -> ScopeEvidence:
    """One scope out of the bundles that have it: as it was there, or joined where each has a shard of it.

    Where none of them ran it, it stays NOT_RUN, with the first one's reason.
    """
    parts = parts_of(group)
    if len(parts) > 1:
        scope = join_folders([(part.folder, part.digest) for part in parts], common)
    else:
        source = next((carried for carried in group if carried.ran), group[0])
        facts = source.bundle.evidence.environment_of(source.evidence)
        scope = replace(source.evidence, environment={} if same_machine_facts(facts, common) else facts)
    return replace(scope, origin=Origin(OriginKind.CARRIED, ", ".join(p.digest for p in parts))) if parts else scope


def copy_carried(group: Sequence[Carried], folder: Path) -> None:
    """Copy the files of a carried scope, each part with its manifest, into an unfinished bundle."""
    home = f"scopes/{group[0].scope}/"
    parts = parts_of(group)
    for number, part in enumerate(parts, 1):
        target = home if len(parts) == 1 else f"{home}{SHARDS}/{number}/"
        _copy(part.bag, part.prefix, folder, target)
        if not part.bag.has(part.prefix + CARRIED_MANIFEST):
            put(folder, target + CARRIED_MANIFEST, part.manifest)
    if not parts:
        _copy(group[0].bundle.bag, home, folder, home)


def _copy(bag: Bag, prefix: str, folder: Path, target: str) -> None:
    for member in bag.members:
        path = member.removeprefix("data/")
        if path.startswith(prefix):
            put(folder, target + path.removeprefix(prefix), bag.read(path))
