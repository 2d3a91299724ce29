"""Baselines move on purpose, from what may back them, and do not churn."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.accept import LEDGER, accept, read_ledger
from harness.baseline import encode_file, load_baseline, load_file
from harness.bundles import bag
from harness.bundles.bundle import Bundle, open_bundle
from harness.errors import EvidenceError, HarnessError, UsageError
from harness.files import sha256_file
from harness.model import CaseStatus, Evidence, Origin, OriginKind, ScopeEvidence
from harness.verdict import Policy
from tests.harness.build import MACHINE, case, evidence, metric, samples, scope, tokens
from tests.harness.conftest import call_here

POLICY = Policy()
TIMES = (10.0, 10.1, 10.2)


def bundle_of(*scopes: ScopeEvidence, digest: str, **facts: Any) -> Bundle:
    """A bundle as ``open_bundle`` would give it, without the folder."""
    environment = {**MACHINE, **facts.pop("facts", {})}
    made: Evidence = replace(evidence(*scopes, facts=environment), digest=digest, label=digest)
    made = replace(made, **{"commit": "c" * 40, "native_sha256": "b" * 64, **facts})
    about = type("About", (), {"name": digest, "parent": ""})()
    empty = bag.Bag(Path(), (), digest, {})
    return Bundle(empty, about, made, None, None, ())  # type: ignore[arg-type]


def timed(values: tuple[float, ...] = TIMES, name: str = "latency", **extra: Any) -> ScopeEvidence:
    return scope(case("n"), name=name, tokens=(tokens("n"),), samples=(samples("n", values, **extra),))


def plain(value: float = 1.0) -> ScopeEvidence:
    return scope(case("n"), case("s", CaseStatus.SKIPPED, "needs a GPU"), metrics=(metric("n", value),))


def run(folder: Path, *bundles: Bundle, **options: Any) -> dict[str, Any]:
    accepted = accept(list(bundles), folder, "because", POLICY, **options)
    return {entry.scope: entry.changes for entry in accepted if entry.changed}


def test_one_bundle_backs_outcomes_and_exact_numbers(tmp_path: Path) -> None:
    changed = run(tmp_path, bundle_of(plain(), digest="a"))
    assert changed["kernels"]["cases"] == {"added": 2, "removed": 0, "changed": 0}
    baseline = load_baseline(tmp_path, "cpu-x86-64")
    stored = baseline.scope("kernels")
    assert stored is not None
    assert [(c.node, c.status, c.seconds) for c in stored.cases] == [
        ("n", CaseStatus.PASSED, None),
        ("s", CaseStatus.SKIPPED, None),
    ]
    assert stored.cases[1].reason == "needs a GPU"
    (entry,) = read_ledger(tmp_path / LEDGER)
    assert entry["reason"] == "because"
    assert entry["sha256"] == sha256_file(tmp_path / "cpu-x86-64" / "kernels.json")


def test_two_runs_back_timings_and_leave_their_spread(tmp_path: Path) -> None:
    one, two = bundle_of(timed(), digest="a"), bundle_of(timed((10.5, 10.6, 10.7)), digest="b")
    with pytest.raises(UsageError, match="one run cannot show that they repeat"):
        run(tmp_path, one)
    run(tmp_path, one, two)
    (stored,) = load_file(tmp_path / "cpu-x86-64" / "latency.json").samples
    assert stored.values == (*TIMES, 10.5, 10.6, 10.7)
    assert stored.aa_spread == pytest.approx(10.6 / 10.1 - 1, abs=1e-4)
    run(tmp_path / "without", one, without_samples=True)
    assert load_file(tmp_path / "without" / "cpu-x86-64" / "latency.json").samples == ()


def test_jitter_does_not_touch_the_file(tmp_path: Path) -> None:
    run(tmp_path, bundle_of(timed(), digest="a"), bundle_of(timed(), digest="b"))
    path = tmp_path / "cpu-x86-64" / "latency.json"
    before, lines = path.read_bytes(), len(read_ledger(tmp_path / LEDGER))
    again = {"facts": {"native.sha256": "d" * 64}, "native_sha256": "d" * 64}
    near = tuple(1.02 * value for value in TIMES)
    assert run(tmp_path, bundle_of(timed(near), digest="c", **again), bundle_of(timed(near), digest="d", **again)) == {}
    assert path.read_bytes() == before
    assert len(read_ledger(tmp_path / LEDGER)) == lines
    far = tuple(1.2 * value for value in TIMES)
    changed = run(tmp_path, bundle_of(timed(far), digest="e"), bundle_of(timed(far), digest="f"))
    assert changed["latency"]["samples"] == {"added": 0, "removed": 0, "changed": 1}
    assert len(read_ledger(tmp_path / LEDGER)) == lines + 1


def test_another_machine_s_times_replace_the_old_ones(tmp_path: Path) -> None:
    run(tmp_path, bundle_of(timed(), digest="a"), bundle_of(timed(), digest="b"))
    other = {"facts": {"cpu.model": "Newer CPU"}}
    run(tmp_path, bundle_of(timed(), digest="c", **other), bundle_of(timed(), digest="d", **other))
    stored = load_file(tmp_path / "cpu-x86-64" / "latency.json")
    assert stored.environment["cpu.model"] == "Newer CPU"


@pytest.mark.parametrize(
    ("bundles", "says"),
    [
        ([bundle_of(plain(), digest="a", commit="unknown")], "its commit is unknown"),
        ([bundle_of(plain(), digest="a", dirty_digest="e" * 64)], "measured on a changed work tree"),
        ([bundle_of(scope(case("n", CaseStatus.FAILED)), digest="a")], "1 cases are not passing, first n"),
        ([bundle_of(scope(case("n", CaseStatus.NOT_RUN, "deselected")), digest="a")], "are not passing"),
        ([bundle_of(scope(case("n"), problem="died"), digest="a")], "only a run that came to its end"),
        ([bundle_of(replace(plain(), origin=Origin(OriginKind.CARRIED, "x")), digest="a")], "only fresh results"),
        ([bundle_of(plain(), digest="a")] * 2, "two different runs"),
        ([bundle_of(timed(), digest=d) for d in "abc"], "3 bundles given"),
        ([bundle_of(timed(), digest="a"), bundle_of(timed(), digest="b", commit="e" * 40)], "must be of one"),
        (
            [bundle_of(timed(), digest="a"), bundle_of(timed(), digest="b", facts={"native.sha256": "9" * 64})],
            "not of one machine and library: native.sha256",
        ),
        ([bundle_of(timed(), digest="a"), bundle_of(timed((20.0,)), digest="b")], "disagree by 98.0%"),
        ([bundle_of(timed(), digest="a"), bundle_of(timed(unfit=("profiled",)), digest="b")], "unfit for timing"),
        ([bundle_of(timed(), digest="a"), bundle_of(timed((-1.0,)), digest="b")], "not positive"),
    ],
)
def test_refused(tmp_path: Path, bundles: list[Bundle], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        run(tmp_path, *bundles)
    assert not (tmp_path / LEDGER).exists()


def test_two_runs_that_disagree_in_exact_things(tmp_path: Path) -> None:
    def both(one: ScopeEvidence, two: ScopeEvidence) -> None:
        timing = {"tokens": (tokens("n"),), "samples": (samples("n", TIMES),)}
        run(tmp_path, bundle_of(replace(one, **timing), digest="a"), bundle_of(replace(two, **timing), digest="b"))  # type: ignore[arg-type]

    with pytest.raises(UsageError, match="disagree in metrics: n count"):
        both(plain(1), plain(2))
    with pytest.raises(UsageError, match="disagree in cases: m"):
        both(scope(case("n")), scope(case("n"), case("m")))
    base = timed()
    other = replace(base, tokens=(tokens("n", per_round=2.0),))
    with pytest.raises(UsageError, match="disagree in tokens: n greedy"):
        run(tmp_path, bundle_of(base, digest="a"), bundle_of(other, digest="b"))
    with pytest.raises(UsageError, match="do not have the same timings"):
        run(tmp_path, bundle_of(base, digest="a"), bundle_of(replace(base, samples=()), digest="b"))


def test_a_reason_is_needed(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="only with a reason"):
        accept([bundle_of(plain(), digest="a")], tmp_path, "  ", POLICY)


def test_only_the_scope_asked_for(tmp_path: Path) -> None:
    made = bundle_of(plain(), timed(), digest="a")
    run(tmp_path, made, scopes=["kernels"])
    assert [path.name for path in (tmp_path / "cpu-x86-64").iterdir()] == ["kernels.json"]
    with pytest.raises(UsageError, match="has no scope routing; it has kernels, latency"):
        run(tmp_path, made, scopes=["routing"])


def test_the_file_reads_well_and_comes_back(tmp_path: Path) -> None:
    run(tmp_path, bundle_of(timed(), digest="a"), bundle_of(timed(), digest="b"))
    path = tmp_path / "cpu-x86-64" / "latency.json"
    text = path.read_text()
    assert encode_file(load_file(path)).decode() == text
    assert json.loads(text)["samples"][0]["values"] == [*TIMES, *TIMES]
    assert '\n  {"node": "n", "status": "passed"}\n' in text
    assert "rounds" not in text


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda t: t.replace('"passed"', '"great"'), "Invalid enum value 'great'"),
        (lambda t: t.replace('"schema": 1', '"schema": 7'), "baseline schema 7"),
        (lambda t: t[:-20], "truncated"),
        (
            lambda t: t.replace(' "device_key": "cpu-x86-64",\n "env', ' "device_key": "x",\n "env'),
            "of its environment differ",
        ),
        (lambda t: t.replace('"scope": "kernels"', '"scope": "other"'), "holds scope other"),
    ],
)
def test_a_damaged_baseline(tmp_path: Path, change: Any, says: str) -> None:
    run(tmp_path, bundle_of(plain(), digest="a"))
    path = tmp_path / "cpu-x86-64" / "kernels.json"
    changed = change(path.read_text())
    assert changed != path.read_text()
    path.write_text(changed)
    with pytest.raises(EvidenceError, match=says):
        load_baseline(tmp_path, "cpu-x86-64")


def test_a_ledger_is_only_appended_to(tmp_path: Path) -> None:
    run(tmp_path, bundle_of(plain(1), digest="a"))
    first = (tmp_path / LEDGER).read_bytes()
    run(tmp_path, bundle_of(plain(2), digest="b"))
    assert (tmp_path / LEDGER).read_bytes().startswith(first)
    entries = read_ledger(tmp_path / LEDGER)
    assert entries[1]["previous"] == entries[0]["sha256"]
    (tmp_path / LEDGER).write_bytes(first[:-10])
    with pytest.raises(EvidenceError, match="its last line is cut"):
        run(tmp_path, bundle_of(plain(3), digest="c"))
    with pytest.raises(EvidenceError, match="line 1"):
        read_ledger(tmp_path / LEDGER)


def test_two_acceptances_at_once_keep_both_lines(tmp_path: Path) -> None:
    scopes = [replace(plain(), scope=f"scope_{number}") for number in range(12)]
    bundles = [bundle_of(one, digest=one.scope) for one in scopes]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda bundle: run(tmp_path, bundle), bundles))
    assert {line["scope"] for line in read_ledger(tmp_path / LEDGER)} == {one.scope for one in scopes}
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith(".")]


def test_a_clock_that_jumps_back_leaves_the_order_of_the_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for value, now in ((1.0, "2027-01-01T00:00:00Z"), (2.0, "1999-01-01T00:00:00Z")):
        monkeypatch.setattr("harness.accept.utc_now", lambda now=now: now)
        run(tmp_path, bundle_of(plain(value), digest=str(value)))
    first, second = read_ledger(tmp_path / LEDGER)
    assert (first["time"], second["previous"]) == ("2027-01-01T00:00:00Z", first["sha256"])
    run(tmp_path, bundle_of(plain(2.0), digest="2"))  # the last line counts, not the latest time
    assert len(read_ledger(tmp_path / LEDGER)) == 2


def test_a_read_only_folder_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, *arguments: Any, **keywords: Any) -> None:
        raise OSError(30, "Read-only file system")

    made = bundle_of(plain(), digest="a")
    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(HarnessError, match="Read-only file system") as caught:
        run(tmp_path, made)
    assert "choose another folder" in caught.value.hint


def test_the_command(sealed: Path) -> None:
    paths = [str(path) for path in sorted((sealed / "artifacts" / "bundles").iterdir())]
    again = call_here(sealed, "accept", *paths, "--reason", "again")
    assert again.code == 0
    assert "green.json: nothing moved beyond its tolerance" in again.out
    assert call_here(sealed, "accept", *paths).code == 2
    compared = call_here(sealed, "compare", "baselines", paths[0])
    assert compared.code == 0
    assert "NO REGRESSION" in compared.out
    forged = json.loads((sealed / "baselines" / "cpu-x86-64" / "green.json").read_text())
    forged["metrics"][0]["value"] = 1
    (sealed / "baselines" / "cpu-x86-64" / "green.json").write_text(json.dumps(forged))
    assert call_here(sealed, "compare", "baselines", paths[0]).code == 1
    opened = open_bundle(Path(paths[0]) if Path(paths[0]).is_absolute() else sealed / paths[0])
    assert opened.evidence.commit
    shutil.rmtree(sealed / "baselines")
    missing = call_here(sealed, "compare", "baselines", paths[0])
    assert missing.code == 2
    assert "there is nothing at baselines" in missing.err
