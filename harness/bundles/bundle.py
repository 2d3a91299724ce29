"""Sealed bundles: a bag whose contents back every claim in its ``bundle.json``.

A bundle is built in ``<name>.unfinished`` beside its place, made durable, and renamed: it is there in whole or not at
all. It is never sealed again; a later one names it as its parent.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from harness import __version__
from harness.bundles import bag
from harness.bundles.claims import not_claimed, scope_claims
from harness.codec import decode, encode
from harness.compare import JUDGE, compare
from harness.errors import EvidenceError, UsageError
from harness.evidence import CARRIED_MANIFEST, SHARDS, read_scope
from harness.files import is_utc, json_bytes, outside_bundles, sync_folder, write_new, writing
from harness.first_difference import first_difference
from harness.gate import decide
from harness.model import Evidence, Origin, OriginKind, ScopeEvidence
from harness.report.markdown import OVERFLOW_NAME
from harness.verdict import Comparison, GateDecision, Policy, Quarantine

SCHEMA = 1
REPORT_PARTS = ("report.md", OVERFLOW_NAME, "report.html")
PLOTS = "plots/"
OTHER_PARTS = ("bundle.json", "environment.json", "base.json", "comparison.json")
_FORGED = (
    "it was altered, or sealed by other rules: `python -m harness compare baselines BUNDLE` judges its records anew"
)


class About(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """``bundle.json``: identity, claims, and what is not claimed."""

    schema: int
    name: str
    created: str
    harness: str
    run: str
    parent: str
    device_key: str
    commit: str
    dirty_digest: str
    native_sha256: str
    scopes: list[dict[str, Any]]
    not_claimed: tuple[str, ...]
    not_written: tuple[str, ...] = ()


class Verdict(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """``comparison.json``: the judgement, with all that it follows from besides head and ``base.json``."""

    judge: int
    policy: Policy
    today: str
    quarantine: tuple[Quarantine, ...]
    comparison: Comparison
    decision: GateDecision


@dataclass(frozen=True)
class Bundle:
    """A sealed bundle that was checked: its bag is whole and its claims follow from its contents."""

    bag: bag.Bag
    about: About
    evidence: Evidence
    verdict: Verdict
    base: Evidence | None
    notes: tuple[str, ...]


# ---- writing --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def unfinished(place: Path) -> Iterator[Path]:
    """A folder to build the bundle ``place`` in. What a killed sealing left there is removed first."""
    if place.exists():
        raise UsageError(
            f"{place} is sealed already; a bundle is never sealed again", "run again: a later run is a new bundle"
        )
    folder = outside_bundles(place).with_name(place.name + ".unfinished")
    with writing(folder):
        place.parent.mkdir(parents=True, exist_ok=True)
        if folder.exists():
            shutil.rmtree(folder)
        (folder / "data").mkdir(parents=True)
    yield folder


def put(folder: Path, path: str, content: bytes) -> None:
    """Write a member ``data/<path>`` of an unfinished bundle."""
    target = folder / "data" / path
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    write_new(target, content)


def copy_scope(source: Path, folder: Path, scope: str) -> None:
    """Copy a scope's folder, tries and all, into an unfinished bundle; links and special files are refused."""
    for path, _ in bag.walk(source, ""):
        with writing(folder / "data" / "scopes" / scope / path):
            content = (source / path).read_bytes()
        put(folder, f"scopes/{scope}/{path}", content)


def about_of(evidence: Evidence, *, name: str, run: str, parent: str, not_written: tuple[str, ...]) -> About:
    """The ``bundle.json`` of some evidence."""
    return About(
        schema=SCHEMA,
        name=name,
        created=evidence.created,
        harness=__version__,
        run=run,
        parent=parent,
        device_key=evidence.device_key,
        commit=evidence.commit,
        dirty_digest=evidence.dirty_digest,
        native_sha256=evidence.native_sha256,
        scopes=[scope_claims(scope) for scope in evidence.scopes],
        not_claimed=evidence.not_claimed,
        not_written=not_written,
    )


def put_common(folder: Path, about: About, evidence: Evidence, base: Evidence | None, verdict: Verdict) -> None:
    """Write the members that every bundle has besides its scopes and reports."""
    put(folder, "bundle.json", json_bytes(msgspec.to_builtins(about)))
    put(folder, "environment.json", json_bytes(evidence.environment))
    put(folder, "comparison.json", encode(verdict))
    if base is not None:
        put(folder, "base.json", encode(base))


def finish(folder: Path, place: Path, about: About) -> str:
    """Seal: manifests, durability, read-only members, one rename. Gives the bundle's digest."""
    info = {
        "Bagging-Date": about.created[:10],
        "External-Identifier": about.name,
        "Bag-Software-Agent": f"harness {__version__}",
        "Parent-Bundle": about.parent or "none",
    }
    digest = bag.finish(folder, info)
    with writing(place):
        for here, _, names in os.walk(folder):
            for name in names:
                Path(here, name).chmod(0o444)
            sync_folder(Path(here))
        try:
            folder.rename(place)
        except OSError as error:
            if place.exists():
                raise UsageError(f"{place} was sealed by somebody else meanwhile") from error
            raise
        sync_folder(place.parent)
    return digest


# ---- reading --------------------------------------------------------------------------------------------------------


def open_bundle(path: Path) -> Bundle:
    """Check a bundle in whole and read it. Raises ``EvidenceError`` that says what does not hold."""
    checked, about, evidence = _open(path)
    verdict = decode(checked.read("comparison.json"), Verdict, f"{path}/data/comparison.json")
    base = decode(checked.read("base.json"), Evidence, f"{path}/data/base.json") if checked.has("base.json") else None
    notes = _check_verdict(path, evidence, base, verdict)
    return Bundle(checked, about, evidence, verdict, base, notes)


def read_evidence(path: Path) -> Evidence:
    """What a bundle shows, its members and claims checked; its own verdict is neither needed nor judged again."""
    return _open(path)[2]


def _open(path: Path) -> tuple[bag.Bag, About, Evidence]:
    checked = bag.check(path)
    about = decode(checked.read("bundle.json"), About, f"{path}/data/bundle.json")
    if about.schema != SCHEMA:
        raise EvidenceError(f"{path}: bundle schema {about.schema}, this harness reads {SCHEMA}")
    if bag.unsafe_path(about.name) or "/" in about.name:
        raise EvidenceError(f"{path}/data/bundle.json: {about.name!r} is no name of a bundle")
    if not is_utc(about.created):
        raise EvidenceError(f"{path}/data/bundle.json: {about.created!r} is no time as in 2026-01-31T12:00:00Z")
    if not about.not_claimed:
        raise EvidenceError(f"{path}/data/bundle.json: says nothing about what it does not claim")
    evidence = _evidence(checked, about)
    unsaid = [line for line in not_claimed(evidence, ()) if line not in about.not_claimed]
    if unsaid:
        raise EvidenceError(f"{path}/data/bundle.json: does not say that it does not claim this: {unsaid[0]}")
    return checked, about, evidence


def _evidence(checked: bag.Bag, about: About) -> Evidence:
    path = checked.folder
    facts = decode(checked.read("environment.json"), dict[str, str], f"{path}/data/environment.json")
    scopes = []
    for claim in about.scopes:
        try:
            name, origin = str(claim["scope"]), Origin(OriginKind(claim["origin"]["kind"]), claim["origin"]["detail"])
        except (KeyError, TypeError, ValueError) as error:
            raise EvidenceError(f"{path}/data/bundle.json: a scope's claim is not understood: {error!r}") from error
        if bag.unsafe_path(name) or "/" in name:
            raise EvidenceError(f"{path}/data/bundle.json: {name!r} is no scope name")
        scope = read_scope(path / "data" / "scopes" / name, facts)
        if origin.kind is OriginKind.CARRIED:
            check_carried(checked, name, origin.detail)
            scope = replace(scope, origin=origin)
        stated, true = msgspec.json.encode(claim, order="sorted"), scope_claims(scope)
        if stated != msgspec.json.encode(true, order="sorted"):
            wrong = [key for key in true if claim.get(key) != msgspec.to_builtins(true[key])]
            raise EvidenceError(
                f"{path}: bundle.json claims {name} {wrong[0] if wrong else ''} otherwise than its files show: "
                + first_difference(claim, true)
            )
        scopes.append(scope)
    if all(scope.environment for scope in scopes):
        raise EvidenceError(f"{path}: environment.json is that of none of its scopes")
    homes = tuple(f"scopes/{scope.scope}/" for scope in scopes)
    for member in (name.removeprefix("data/") for name in checked.members):
        if member.startswith("scopes/") and not member.startswith(homes):
            raise EvidenceError(f"{path}/data/{member}: belongs to no scope that bundle.json claims")
        if not member.startswith((PLOTS, "scopes/")) and member not in (*REPORT_PARTS, *OTHER_PARTS):
            raise EvidenceError(f"{path}/data/{member}: is nothing that a bundle holds")
    for key, value in (
        ("device_key", about.device_key),
        ("git.commit", about.commit),
        ("git.dirty_digest", about.dirty_digest),
        ("native.sha256", about.native_sha256),
    ):
        if facts.get(key, "") != value:
            raise EvidenceError(
                f"{path}: bundle.json claims {key} {value!r}, environment.json has {facts.get(key, '')!r}"
            )
    return Evidence(
        label=about.name,
        device_key=about.device_key,
        scopes=tuple(scopes),
        digest=checked.digest,
        created=about.created,
        commit=about.commit,
        dirty_digest=about.dirty_digest,
        native_sha256=about.native_sha256,
        environment=facts,
        not_claimed=about.not_claimed,
    )


def check_carried(checked: bag.Bag, scope: str, origin: str) -> None:
    """Carried results must be, file by file, those of the bundles that ``origin`` names; their manifests came along."""
    digests = origin.split(", ")
    homes = [f"scopes/{scope}/{SHARDS}/{number}/" for number in range(1, len(digests) + 1)]
    for home, digest in zip(homes if len(digests) > 1 else [f"scopes/{scope}/"], digests, strict=True):
        _check_part(checked, scope, home, digest)


def _check_part(checked: bag.Bag, scope: str, home: str, digest: str) -> None:
    prefix = f"data/scopes/{scope}/"
    manifest = checked.read(home + CARRIED_MANIFEST)
    if hashlib.sha256(manifest).hexdigest() != digest:
        raise EvidenceError(
            f"{checked.folder}: scope {scope} is not from bundle {digest}: the manifest it brings is another's"
        )
    problems: list[str] = []
    stated = bag.read_manifest(manifest, f"{home}{CARRIED_MANIFEST}", problems)
    if problems:
        raise EvidenceError(f"{checked.folder}: {problems[0]}")
    theirs = {path: sha for path, sha in stated.items() if path.startswith(prefix)}
    here = f"data/{home}"
    members = {path: member.sha256 for path, member in checked.members.items() if path.startswith(here)}
    ours = {prefix + path.removeprefix(here): sha for path, sha in members.items()}
    del ours[f"{prefix}{CARRIED_MANIFEST}"]
    if theirs != ours:
        wrong = sorted(path for path in {*theirs, *ours} if theirs.get(path) != ours.get(path))
        raise EvidenceError(f"{checked.folder}: {wrong[0]} is not as it was in bundle {digest}")


def _check_verdict(path: Path, head: Evidence, base: Evidence | None, verdict: Verdict) -> tuple[str, ...]:
    """Judge again from the contents; the stated judgement must follow from them."""
    if verdict.judge != JUDGE:
        return (f"judged by rules {verdict.judge}, this harness has {JUDGE}: the comparison was not made again",)
    held = {entry.node: entry for entry in verdict.quarantine}
    again = compare(base, replace(head, digest=""), verdict.policy, held, verdict.today)
    if again != verdict.comparison:
        where = first_difference(verdict.comparison, again)
        raise EvidenceError(f"{path}: comparison.json does not follow from the bundle's contents: {where}", _FORGED)
    decided = decide(again, verdict.policy)
    if decided != verdict.decision:
        where = first_difference(verdict.decision, decided)
        raise EvidenceError(
            f"{path}: the verdict in comparison.json does not follow from its comparison: {where}", _FORGED
        )
    return ()


def find_parent(path: Path, digest: str) -> Path | None:
    """The bundle beside ``path`` whose digest is ``digest``, if it is there."""
    for sibling in sorted(path.parent.iterdir()):
        manifest = sibling / "manifest-sha256.txt"
        if sibling != path and manifest.is_file() and hashlib.sha256(manifest.read_bytes()).hexdigest() == digest:
            return sibling
    return None


def report_of(checked: bag.Bag) -> dict[str, bytes]:
    """Every form of the report that a bundle holds, by path."""
    paths = [name.removeprefix("data/") for name in checked.members]
    return {path: checked.read(path) for path in paths if path in REPORT_PARTS or path.startswith(PLOTS)}


def scope_of(bundle: Bundle, name: str) -> ScopeEvidence:
    """The scope called ``name`` of a bundle, or a usage error that lists those it has."""
    scope = bundle.evidence.scope(name)
    if scope is None:
        have = ", ".join(entry.scope for entry in bundle.evidence.scopes)
        raise UsageError(f"{bundle.about.name} has no scope {name}; it has {have}")
    return scope
