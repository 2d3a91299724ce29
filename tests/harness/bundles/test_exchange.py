"""Bundles given away and taken in: zips that are not trusted, statements that are signed, audit."""

from __future__ import annotations

import json
import stat
import subprocess
import zipfile
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest

from harness import audit as audits
from harness.audit import Weight, audit
from harness.bundles import bag, zipped
from harness.bundles.bundle import open_bundle
from harness.errors import EvidenceError, UsageError
from harness.verdict import Quarantine
from tests.harness.build import case, evidence, samples, scope, tokens
from tests.harness.conftest import call_here


def first(sealed: Path) -> Path:
    return min((sealed / "artifacts" / "bundles").iterdir())


def test_zip_there_and_back(sealed: Path) -> None:
    source = first(sealed)
    assert call_here(sealed, "export", str(source), "-o", "one.zip").code == 0
    assert call_here(sealed, "export", str(source), "-o", "two.zip").code == 0
    assert (sealed / "one.zip").read_bytes() == (sealed / "two.zip").read_bytes()
    assert "is there already" in call_here(sealed, "export", str(source), "-o", "one.zip").err
    assert call_here(sealed, "verify", "one.zip").code == 0
    done = call_here(sealed, "import", "one.zip", "--out", "elsewhere")
    assert done.code == 0
    assert open_bundle(sealed / "elsewhere" / source.name).bag.digest == bag.check(source).digest
    assert "is there already" in call_here(sealed, "import", "one.zip", "--out", "elsewhere").err
    spoilt = bytearray((sealed / "one.zip").read_bytes())
    spoilt[200] ^= 0xFF
    (sealed / "one.zip").write_bytes(spoilt)
    assert call_here(sealed, "verify", "one.zip").code == 3


Change = Callable[[zipfile.ZipFile], None]


def entry(name: str, mode: int = stat.S_IFREG | 0o644, content: bytes = b"x") -> Change:
    def add(archive: zipfile.ZipFile) -> None:
        info = zipfile.ZipInfo(name)
        info.external_attr = mode << 16
        info.compress_type = zipfile.ZIP_DEFLATED
        archive.writestr(info, content)

    return add


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (entry("b/../../evil"), "leaves the folder"),
        (entry("/etc/evil"), "absolute"),
        (entry("b/link", stat.S_IFLNK | 0o777, b"/etc/passwd"), "is a link"),
        (entry("b/fifo", stat.S_IFIFO), "is a link, a special file"),
        (entry("B/BAGIT.TXT"), "is there twice"),
        (entry("other/file"), "one folder at its top, found 2"),
        (entry("file"), "one folder at its top"),
        (entry("b/bomb", content=b"\0" * (4 << 20)), "would grow"),
        (entry("b/extra.txt"), "extra.txt is extra"),
        (entry("b\\evil"), "characters that some systems treat specially"),
    ],
)
def test_zips_that_are_refused(tmp_path: Path, change: Change, says: str) -> None:
    folder = tmp_path / "b"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "a").write_text("a")
    bag.finish(folder, {})
    zipped.write_zip(folder, tmp_path / "b.zip")
    with zipfile.ZipFile(tmp_path / "b.zip", "a") as archive:
        change(archive)
    with pytest.raises(EvidenceError, match=says):
        zipped.read_zip(tmp_path / "b.zip", tmp_path / "out")
    assert not (tmp_path / "out" / "b").exists()
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize("content", [b"", b"PK", b"PK\x05\x06" + b"\0" * 18, b"hello"])
def test_what_is_no_zip(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.zip").write_bytes(content)
    with pytest.raises(EvidenceError):
        zipped.read_zip(tmp_path / "x.zip", tmp_path)
    with pytest.raises(UsageError, match="there is nothing at"):
        zipped.read_zip(tmp_path / "absent.zip", tmp_path)


# ---- statements -----------------------------------------------------------------------------------------------------


@pytest.fixture
def keys(tmp_path: Path) -> tuple[str, str]:
    private, public = tmp_path / "key.pem", tmp_path / "public.pem"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", private], check=True, capture_output=True)
    subprocess.run(["openssl", "pkey", "-in", private, "-pubout", "-out", public], check=True, capture_output=True)
    return str(private), str(public)


def test_a_statement_names_bundle_and_results(sealed: Path) -> None:
    source = first(sealed)
    said = json.loads(call_here(sealed, "attest", str(source)).out)
    assert said["subject"] == [{"name": source.name, "digest": {"sha256": bag.check(source).digest}}]
    assert said["predicateType"] == "https://in-toto.io/attestation/test-result/v0.1"
    predicate = said["predicate"]
    assert predicate["result"] == "PASSED"
    assert "suites/green/test_green.py::test_plain" in predicate["passedTests"]
    assert predicate["warnedTests"] == ["suites/green/test_green.py::test_needs_a_gpu"]
    assert predicate["failedTests"] == []
    assert {row["name"] for row in predicate["configuration"]} >= {"source", "data/scopes/green/junit.xml"}


def test_signed_and_checked(sealed: Path, keys: tuple[str, str]) -> None:
    private, public = keys
    source = str(first(sealed))
    assert call_here(sealed, "attest", source, "--key", private, "-o", "s.json").code == 0
    checked = call_here(sealed, "attest", source, "--check", "s.json", "--key", public)
    assert "signed by that key, and says what the bundle shows" in checked.out
    other = str(max((sealed / "artifacts" / "bundles").iterdir()))
    assert "is about another bundle" in call_here(sealed, "attest", other, "--check", "s.json", "--key", public).err
    assert call_here(sealed, "attest", source, "--check", "s.json").code == 2
    envelope = json.loads((sealed / "s.json").read_text())
    for key, value in (("payload", "e30="), ("payloadType", "text/plain"), ("signatures", [])):
        (sealed / "bad.json").write_text(json.dumps({**envelope, key: value}))
        done = call_here(sealed, "attest", source, "--check", "bad.json", "--key", public)
        assert (done.code, "does not hold" in done.err) == (3, True), done.err
    inside = call_here(sealed, "attest", source, "-o", f"{source}/data/s.json")
    assert (inside.code, "lies in the bundle" in inside.err) == (2, True)


def test_unsigned_and_forged_statements(sealed: Path, keys: tuple[str, str]) -> None:
    source = str(first(sealed))
    assert call_here(sealed, "attest", source, "-o", "s.json").code == 0
    assert "(not signed)" in call_here(sealed, "attest", source, "--check", "s.json").out
    assert "is not signed" in call_here(sealed, "attest", source, "--check", "s.json", "--key", keys[1]).err
    said = json.loads((sealed / "s.json").read_text())
    said["predicate"]["result"] = "FAILED"
    (sealed / "s.json").write_text(json.dumps(said))
    assert "does not say what the bundle shows" in call_here(sealed, "attest", source, "--check", "s.json").err
    (sealed / "s.json").write_text("[")
    assert "not JSON" in call_here(sealed, "attest", source, "--check", "s.json").err
    (sealed / "key").write_text("no key")
    bad = call_here(sealed, "attest", source, "--key", "key")
    assert (bad.code, "no private key in PEM" in bad.err) == (2, True)


# ---- audit ----------------------------------------------------------------------------------------------------------


def test_audit_of_an_untouched_folder(sealed: Path) -> None:
    done = call_here(sealed, "audit", str(first(sealed)))
    assert done.code == 0
    assert [line.split()[0] for line in done.out.splitlines()] == ["fine", "fine"]
    assert "accepted 0 days ago" in done.out
    assert call_here(sealed, "audit", "--baselines", "absent").code == 2


def test_audit_sees_what_is_wrong(sealed: Path) -> None:
    folder = sealed / "baselines"
    green = folder / "cpu-x86-64" / "green.json"
    green.write_text(green.read_text().replace("33.0", "34.0"))
    (folder / "cpu-x86-64" / "timed.json").unlink()
    (folder / "cpu-x86-64" / "stranger.json").write_text("{}")
    (folder / "quarantine.toml").write_text(
        '[[case]]\nnode = "n"\nowner = "me"\nreason = "r"\nsince = 2026-01-01\nexpires = 2026-01-02\n'
    )
    done = call_here(sealed, "audit")
    assert done.code == 1
    for said in (
        "wrong  cpu-x86-64/green: it was changed since it was accepted",
        "wrong  cpu-x86-64/timed: the ledger speaks of it and the file is gone",
        "wrong  cpu-x86-64/stranger: ",
        "wrong  quarantine of n: ended",
    ):
        assert said in done.out


def test_audit_names_what_is_not_gated_and_what_is_old(sealed: Path) -> None:
    folder = sealed / "baselines"
    key = next(path.name for path in folder.iterdir() if path.is_dir())
    facts = {"device_key": key}
    timed = scope(case("new"), name="timed", tokens=(tokens("new"),), samples=(samples("new", (1.0,)),))
    head = evidence(timed, scope(case("x"), name="routing"), label="last night", facts=facts)
    held = {"n": Quarantine("n", "me", "r", "2026-06-05")}
    found = {finding.detail for finding in audit(folder, held, [head], date(2026, 6, 1))}
    assert "last night ran it, and there is no baseline" in found
    assert "1 cases of last night are not in it, first new" in found
    assert "1 timings of last night are not in it, first new round_ms" in found
    assert "4 days left (owner me): r" in found
    early = audit(folder, {}, [], date(2000, 1, 1))
    assert {finding.weight for finding in early} == {Weight.WRONG}
    assert "still to come: whose clock is wrong?" in early[0].detail
    late = audit(folder, {}, [], date(2100, 1, 1))
    assert {finding.weight for finding in late} == {Weight.STALE}
    assert audits.STALE_DAYS == 90
