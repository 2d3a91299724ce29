"""A bundle's claims follow from its contents, even against somebody who mends the digests afterwards."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bagit
import pytest

from harness.bundles import bag
from harness.bundles.bundle import open_bundle
from harness.compare import JUDGE
from harness.errors import EvidenceError
from harness.model import OriginKind
from tests.harness.bundles.forge import change_json, replace, reseal
from tests.harness.conftest import SECRET, call_here, harness_environment


def test_a_sealed_bundle_is_whole(sealed: Path) -> None:
    for path in (sealed / "artifacts" / "bundles").iterdir():
        opened = open_bundle(path)
        bagit.Bag(str(path)).validate()
        done = subprocess.run(["sha256sum", "--quiet", "-c", "manifest-sha256.txt"], cwd=path, check=False)
        assert done.returncode == 0
        assert opened.evidence.scope("green") is not None
        assert opened.about.not_claimed
        assert opened.notes == ()
    verified = call_here(sealed, "verify", str(path))
    assert verified.code == 0
    assert "scope   green: 5 of 6 cases passed" in verified.out
    wrong = call_here(sealed, "verify", str(path), "--digest", "0" * 64)
    assert wrong.code == 3
    assert "is whole, but its digest is" in wrong.err


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (replace("scopes/green/records.jsonl", '"value": 33.0', '"value": 32.0'), "does not follow"),
        (replace("scopes/timed/records.jsonl", "10.1", "9.1"), "does not follow"),
        (
            replace("scopes/green/records.jsonl", '"outcome": "passed"', '"outcome": "failed"'),
            "in the XML and failed in the",
        ),
        (replace("scopes/green/junit.xml", 'name="test_plain"', 'name="test_plane"'), "is in the records"),
        (
            lambda folder: (folder / "data/scopes/green/junit.xml").unlink(),
            "missing, though pytest ended with exit code 0",
        ),
        (lambda folder: (folder / "data/scopes/green/scope.json").unlink(), "this scope is unfinished"),
        (lambda folder: shutil.rmtree(folder / "data/scopes/green"), "green"),
        (
            change_json("bundle.json", lambda b: b["scopes"][0]["cases"].update(passed=99)),
            "claims green cases otherwise than its files show: cases.passed is 99, and 5 follows",
        ),
        (change_json("bundle.json", lambda b: b["scopes"][0].update(argv=["pytest"])), "claims green argv otherwise"),
        (change_json("bundle.json", lambda b: b["scopes"].pop()), "belongs to no scope"),
        (change_json("bundle.json", lambda b: b.update(not_claimed=[])), "does not claim"),
        (
            change_json("bundle.json", lambda b: b.update(not_claimed=["much"])),
            "does not claim this: scope green: 1 case",
        ),
        (change_json("bundle.json", lambda b: b.update(commit="0" * 40)), "claims git.commit"),
        (change_json("bundle.json", lambda b: b.update(dirty_digest="0" * 64)), "claims git.dirty_digest"),
        (change_json("bundle.json", lambda b: b.update(created="yesterday")), "'yesterday' is no time as in"),
        (change_json("bundle.json", lambda b: b.update(name="a/../../b")), "is no name of a bundle"),
        (lambda folder: (folder / "data/also.html").write_text("x"), "data/also.html: is nothing that a bundle holds"),
        (change_json("bundle.json", lambda b: b.update(schema=2)), "bundle schema 2"),
        (change_json("bundle.json", lambda b: b.update(extra=1)), "unknown field `extra`"),
        (change_json("bundle.json", lambda b: b["scopes"][0].update(scope="../../../etc")), "is no scope name"),
        (
            change_json("bundle.json", lambda b: b["scopes"][0]["origin"].update(kind="carried", detail="f" * 64)),
            "there is no member data/scopes/green/carried-manifest",
        ),
        (change_json("comparison.json", lambda c: c["decision"].update(reasons=["all is well"])), "the verdict in"),
        (change_json("comparison.json", lambda c: c["comparison"]["cases"].pop()), "::test_decode] is absent, and {"),
        (change_json("comparison.json", lambda c: c["policy"].update(margin_floor="x")), "Expected `float`"),
        (change_json("comparison.json", lambda c: c["policy"].update(margin_floor=50.0)), "not between 0 and 1"),
        (change_json("environment.json", lambda e: e.update({"cpu.model": "Other"})), "that of none of its scopes"),
    ],
)
def test_a_forged_bundle(bundle: Path, spoil: Callable[[Path], None], says: str) -> None:
    spoil(bundle)
    reseal(bundle)
    with pytest.raises(EvidenceError) as caught:
        open_bundle(bundle)
    assert says in str(caught.value)


def test_rules_of_another_harness_are_noted(bundle: Path) -> None:
    change_json("comparison.json", lambda c: c.update(judge=0))(bundle)
    reseal(bundle)
    said = f"judged by rules 0, this harness has {JUDGE}: the comparison was not made again"
    assert open_bundle(bundle).notes == (said,)
    attested = call_here(bundle.parent, "attest", str(bundle))  # nobody signs a verdict that was not made again
    assert attested.code == 3
    assert said in attested.err
    shown = call_here(bundle.parent, "report", str(bundle))
    assert shown.code == 0
    assert said in shown.err


def carried_from_a_forged_manifest(folder: Path, content: bytes) -> None:
    """Scope green is said to be carried from a bundle whose manifest is ``content``; its digest is right."""
    (folder / "data/scopes/green/carried-manifest-sha256.txt").write_bytes(content)
    origin = {"kind": "carried", "detail": hashlib.sha256(content).hexdigest()}
    change_json("bundle.json", lambda b: b["scopes"][0].update(origin=origin))(folder)


@pytest.mark.parametrize("content", [b"", b"\xff\n", b"one\n", b"a" * 64 + b"  data/../../etc/passwd\n"])
def test_a_carried_manifest_that_is_none(bundle: Path, content: bytes) -> None:
    carried_from_a_forged_manifest(bundle, content)
    reseal(bundle)
    with pytest.raises(EvidenceError, match=r"carried-manifest-sha256\.txt"):
        open_bundle(bundle)


def test_sealed_again_never(sealed: Path) -> None:
    again = call_here(sealed, "seal", "runs/a")
    assert again.code == 2
    assert "is sealed already" in again.err


def test_no_secret_of_the_environment_is_in_it(sealed: Path) -> None:
    members = [path for path in (sealed / "artifacts").rglob("*") if path.is_file()]
    assert any(path.suffix == ".svg" for path in members)
    assert not [path for path in members if SECRET.encode() in path.read_bytes()]


@pytest.mark.parametrize("part", ["report.md", "report.html", "plots/metrics.svg"])
def test_an_edited_report_is_noted(bundle: Path, part: str) -> None:
    (bundle / "data" / part).write_text("# All is well\n")
    reseal(bundle)
    done = call_here(bundle.parent, "verify", str(bundle))
    assert done.code == 0
    assert f"note    {part} is not what this harness writes from the contents" in done.out


@pytest.mark.parametrize("number", [0, 3, 9])
def test_a_disk_that_fills_up_while_sealing(sealed: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """The error says what to do, no bundle is there, the run is untouched, and the next sealing succeeds."""
    left = [number]

    def full(_: int) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        done = call_here(sealed, "seal", "runs/a", "--against", "none", "--out", "out")
    assert done.code == 2  # as at the start of a run: it says nothing against the evidence
    assert "No space left on device" in done.err
    assert "free some space" in done.err
    assert [path.suffix for path in (sealed / "out").iterdir()] == [".unfinished"]
    assert call_here(sealed, "seal", "runs/a", "--against", "none", "--out", "out").code == 0
    (path,) = (sealed / "out").iterdir()
    open_bundle(path)


def test_a_read_only_place_for_bundles(sealed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.mkdir

    def refuse(self: Path, *arguments: Any, **keywords: Any) -> None:
        if "out" in self.parts:
            raise OSError(30, "Read-only file system")
        real(self, *arguments, **keywords)

    monkeypatch.setattr(Path, "mkdir", refuse)
    done = call_here(sealed, "seal", "runs/a", "--against", "none", "--out", "out")
    assert done.code == 2
    assert "Read-only file system" in done.err
    assert "choose another folder" in done.err


def test_members_are_read_only(sealed: Path) -> None:
    path = next((sealed / "artifacts" / "bundles").iterdir()) / "data" / "bundle.json"
    assert path.stat().st_mode & 0o222 == 0


def test_a_clock_that_jumps_between_run_and_sealing(sealed: Path) -> None:
    """Nothing in a bundle is worked out from two clocks: a run of the future or the past is sealed and verified."""
    for name, created in (("future", "2999-01-01T00:00:00Z"), ("past", "1970-01-01T00:00:00Z")):
        shutil.copytree(sealed / "runs" / "a", sealed / "runs" / name)
        about = json.loads((sealed / "runs" / name / "run.json").read_text())
        (sealed / "runs" / name / "run.json").write_text(json.dumps({**about, "created": created}))
        scope = sealed / "runs" / name / "green" / "scope.json"
        record = json.loads(scope.read_text())
        scope.write_text(json.dumps({**record, "started": created, "finished": "1999-01-01T00:00:00Z"}))
        assert call_here(sealed, "seal", f"runs/{name}", "--out", "skewed").code == 0
    for path in (sealed / "skewed").iterdir():
        assert call_here(sealed, "verify", str(path)).code == 0


def test_two_sealings_of_one_run_at_once(sealed: Path) -> None:
    """One seals, the other is refused (2); never two halves of a bundle."""
    argv = [sys.executable, "-m", "harness", "seal", "runs/a", "--against", "none", "--out", "out"]
    both = [subprocess.Popen(argv, cwd=sealed, env=harness_environment(), stdout=subprocess.DEVNULL) for _ in range(2)]
    assert sorted(child.wait(120) for child in both) == [0, 2]
    (path,) = (sealed / "out").iterdir()
    open_bundle(path)


def test_parent(sealed: Path) -> None:
    parent = min((sealed / "artifacts" / "bundles").iterdir())
    out = sealed / "artifacts" / "bundles"
    shutil.copytree(sealed / "runs" / "a", sealed / "runs" / "c")
    assert call_here(sealed, "seal", "runs/c", "--parent", str(parent)).code == 0
    child = next(path for path in out.iterdir() if path.name.startswith("c-"))
    assert f"parent  {bag.check(parent).digest} ({parent.name})" in call_here(sealed, "verify", str(child)).out
    shutil.rmtree(parent)
    assert "(not beside it)" in call_here(sealed, "verify", str(child)).out


def carry(sealed: Path) -> Path:
    """A run of ``timed`` alone that takes ``green`` over from the first bundle."""
    source = min((sealed / "artifacts" / "bundles").iterdir())
    shutil.copytree(sealed / "runs" / "a", sealed / "runs" / "c")
    shutil.rmtree(sealed / "runs" / "c" / "green")
    done = call_here(sealed, "seal", "runs/c", "--carry", f"{source}:green")
    assert done.code == 0, done.out + done.err
    path = next(path for path in (sealed / "artifacts" / "bundles").iterdir() if path.name.startswith("c-"))
    for member in path.rglob("*"):
        member.chmod(0o755 if member.is_dir() else 0o644)
    return path


def test_carried_results_name_their_bundle(sealed: Path) -> None:
    path = carry(sealed)
    opened = open_bundle(path)
    green = opened.evidence.scope("green")
    assert green is not None
    assert green.origin.kind is OriginKind.CARRIED
    assert green.origin.detail == bag.check(min(path.parent.iterdir())).digest
    assert any("was not measured now: it is carried over" in line for line in opened.evidence.not_claimed)
    refused = call_here(sealed, "accept", str(path), "--reason", "x", "--scope", "green")
    assert refused.code == 2
    assert "only fresh results are accepted" in refused.err


def test_carried_results_of_carried_results_name_the_first(sealed: Path) -> None:
    first = carry(sealed)
    shutil.copytree(sealed / "runs" / "c", sealed / "runs" / "d")
    assert call_here(sealed, "seal", "runs/d", "--carry", f"{first}:green").code == 0
    last = open_bundle(next(path for path in first.parent.iterdir() if path.name.startswith("d-")))
    green = last.evidence.scope("green")
    assert green is not None
    assert green.origin.detail == bag.check(min(first.parent.iterdir())).digest


def test_carried_results_cannot_be_changed(sealed: Path) -> None:
    path = carry(sealed)
    log = path / "data" / "scopes" / "green" / "log.txt"
    log.write_text(log.read_text() + "and all is well\n")
    reseal(path)
    with pytest.raises(EvidenceError, match=r"green/log\.txt is not as it was in bundle"):
        open_bundle(path)


def test_a_scope_is_not_both_fresh_and_carried(sealed: Path) -> None:
    source = min((sealed / "artifacts" / "bundles").iterdir())
    done = call_here(sealed, "seal", "runs/a", "--carry", f"{source}:green", "--out", "elsewhere")
    assert done.code == 2
    assert "was run now; it is not also carried" in done.err
    assert call_here(sealed, "seal", "runs/a", "--carry", "nocolon").code == 2
    done = call_here(sealed, "seal", "runs/a", "--carry", f"{source}:absent", "--out", "elsewhere")
    assert "has no scope absent; it has green, timed" in done.err


@pytest.mark.parametrize(("stage", "least"), [("seal", 15), ("accept", 4), ("attempt", 5)])
def test_kill_9_at_every_write(sealed: Path, stage: str, least: int) -> None:
    """A child is killed at its first, second, ... durable write; after each, the next attempt must succeed whole."""
    driver = Path(__file__).with_name("kill_driver.py")
    shutil.rmtree(sealed / "runs" / "a" / "green")  # fewer members, fewer places to be killed at
    argv = [sys.executable, str(driver), stage]
    done = subprocess.run(argv, cwd=sealed, env=harness_environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.splitlines()[-1]) >= least
