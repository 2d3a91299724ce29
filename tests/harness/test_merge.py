"""One bundle out of partial ones: scopes of their own, and shards of one scope that agree, repeat or contradict."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from harness.bundles import bag
from harness.bundles.bundle import open_bundle
from harness.errors import EvidenceError
from harness.model import CaseResult, CaseStatus, OriginKind, ScopeEvidence
from harness.shards import Shard, join_facts, join_shards
from tests.harness.build import MACHINE, case, metric, samples, scope, tokens
from tests.harness.bundles.forge import reseal
from tests.harness.conftest import Ran, call_here, make_project

WITHOUT_PLUGINS = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def partial(sealed: Path, keep: str, drop: str) -> str:
    shutil.copytree(sealed / "runs" / "a", sealed / "runs" / keep)
    shutil.rmtree(sealed / "runs" / keep / drop)
    assert call_here(sealed, "seal", f"runs/{keep}", "--out", "artifacts/parts").code == 0
    return str(next((sealed / "artifacts" / "parts").glob(f"{keep}-*")))


@pytest.fixture(scope="module")
def runners(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the runners of a CI matrix sealed, each by itself, in ``artifacts/parts``."""
    root = make_project(tmp_path_factory.mktemp("runners") / "project")
    for name, only, fault in (
        ("sizes", "sizes", ""),
        ("others", "not sizes", ""),
        ("all", "test", ""),
        ("fail", "sizes", "fail"),
        ("metric", "sizes", "metric"),
    ):
        run, env = f"runs/{name}", {**WITHOUT_PLUGINS, "FIXTURE_FAULT": fault}
        call_here(
            root, "run", "timed", "green", "--run-dir", run, "--not-run", "timed=no model", "--", "-k", only, env=env
        )
        call_here(root, "seal", run, "--against", "none", "--out", "artifacts/parts")
    return root


def part(root: Path, name: str) -> Path:
    return next((root / "artifacts" / "parts").glob(f"{name}-*"))


def merged(root: Path, out: Path, *parts: Path) -> Ran:
    """Merge into ``out``."""
    return call_here(root, "merge", *map(str, parts), "--out", str(out), "--against", "none")


def green(path: Path) -> ScopeEvidence:
    """The scope of the one bundle in ``path``, all of it checked."""
    found = open_bundle(next(path.iterdir())).evidence.scope("green")
    assert found is not None
    return found


def test_partial_bundles_of_several_runners_become_one(sealed: Path) -> None:
    parts = partial(sealed, "green", "timed"), partial(sealed, "timed", "green")
    done = call_here(sealed, "merge", *parts, "--out", "artifacts/merged")
    assert done.code == 0, done.err
    (path,) = (sealed / "artifacts" / "merged").iterdir()
    digests = [bag.check(sealed / part).digest for part in parts]
    assert [(s.scope, s.origin.detail) for s in open_bundle(path).evidence.scopes] == [
        ("green", digests[0]),
        ("timed", digests[1]),
    ]
    assert "give two or more" in call_here(sealed, "merge", parts[0]).err
    assert "is given twice" in call_here(sealed, "merge", parts[0], parts[0]).err


def test_shards_of_one_scope_become_the_scope(runners: Path, tmp_path: Path) -> None:
    parts = part(runners, "sizes"), part(runners, "others")
    done = merged(runners, tmp_path / "out", *parts)
    found = green(tmp_path / "out")
    assert found.origin.detail == ", ".join(bag.check(path).digest for path in parts)
    counts = Counter(case.status for case in found.cases)
    assert counts == {CaseStatus.PASSED: 5, CaseStatus.SKIPPED: 1}
    assert (len(found.metrics), len(found.tokens)) == (3, 1)
    assert any(note.startswith("shard 2 (bundle ") and "3 cases run" in note for note in found.notes)
    (path,) = (tmp_path / "out").iterdir()
    assert "whole" in call_here(runners, "verify", str(path)).out
    timed = open_bundle(path).evidence.scope("timed")  # nobody could run it: that is said, not hidden
    assert timed is not None
    assert (timed.origin.kind, timed.origin.detail) == (OriginKind.NOT_RUN, "no model")
    assert done.code == 4
    assert "scope timed was not run: no model" in " ".join(done.out.split())


def test_a_merged_bundle_s_shards_stay_shards(runners: Path, tmp_path: Path) -> None:
    merged(runners, tmp_path / "first", part(runners, "sizes"), part(runners, "others"))
    (first,) = (tmp_path / "first").iterdir()
    merged(runners, tmp_path / "second", first, part(runners, "all"))
    found = green(tmp_path / "second")
    assert len(found.origin.detail.split(", ")) == 3
    assert any("6 cases were run by several shards, with one outcome" in note for note in found.notes)
    again = merged(runners, tmp_path / "third", first, part(runners, "sizes"))
    assert (again.code, "is given twice" in again.err) == (2, True)


def test_a_case_that_fails_in_one_shard_and_passes_in_another_is_flaky(runners: Path, tmp_path: Path) -> None:
    assert merged(runners, tmp_path / "out", part(runners, "fail"), part(runners, "all")).code == 1
    (flaky,) = [case for case in green(tmp_path / "out").cases if case.status is CaseStatus.FLAKY]
    assert flaky.node.endswith("test_sizes[64]")
    assert "failed in shard 1" in flaky.reason
    assert "passed in shard 2" in flaky.reason


def test_two_values_of_one_exact_figure_are_refused_by_name(runners: Path, tmp_path: Path) -> None:
    done = merged(runners, tmp_path / "out", part(runners, "metric"), part(runners, "sizes"))
    assert done.code == 3
    assert "test_sizes[8] registers: (41.0, 'register') in shard 1" in done.err
    assert "(40.0, 'register') in shard 2" in done.err


def test_a_shard_cannot_be_changed(runners: Path, tmp_path: Path) -> None:
    merged(runners, tmp_path / "out", part(runners, "sizes"), part(runners, "others"))
    (path,) = (tmp_path / "out").iterdir()
    for member in path.rglob("*"):
        member.chmod(0o755 if member.is_dir() else 0o644)
    log = path / "data" / "scopes" / "green" / "shards" / "2" / "log.txt"
    log.write_text(log.read_text() + "and all is well\n")
    reseal(path)
    with pytest.raises(EvidenceError, match=r"green/log\.txt is not as it was in bundle"):
        open_bundle(path)
    (path / "data" / "scopes" / "green" / "note.txt").write_text("beside the shards")
    reseal(path)
    with pytest.raises(EvidenceError, match=r"shards are numbered from 1, found 1, 2, note\.txt"):
        open_bundle(path)


# ---- the rules, without a process -----------------------------------------------------------------------------------


def joined(*scopes: ScopeEvidence, facts: tuple[dict[str, str], ...] = ()) -> ScopeEvidence:
    maps = facts or (MACHINE,) * len(scopes)
    return join_shards([Shard(f"shard {n}", one, maps[n - 1]) for n, one in enumerate(scopes, 1)])


DESELECTED = CaseResult("a", CaseStatus.NOT_RUN, None, "deselected on the command line")
NEVER = CaseResult("a", CaseStatus.NOT_RUN, None, "collected, never run: the process ended before")


@pytest.mark.parametrize(
    ("one", "other", "status"),
    [
        (DESELECTED, case("a"), CaseStatus.PASSED),
        (case("a", CaseStatus.FAILED), DESELECTED, CaseStatus.FAILED),
        (DESELECTED, DESELECTED, CaseStatus.NOT_RUN),
        (NEVER, case("a"), CaseStatus.PASSED),
        (case("a"), case("a"), CaseStatus.PASSED),
        (case("a"), case("a", CaseStatus.CRASHED), CaseStatus.FLAKY),
        (case("a", CaseStatus.FAILED), case("a", CaseStatus.ERROR), CaseStatus.ERROR),
        *((case("a"), case("a", less), less) for less in (CaseStatus.XFAILED, CaseStatus.UNKNOWN, CaseStatus.FLAKY)),
        (case("a", CaseStatus.XFAILED), case("a", CaseStatus.CRASHED), CaseStatus.CRASHED),
        (case("a", CaseStatus.SKIPPED), case("a"), CaseStatus.PASSED),
        (case("a", CaseStatus.SKIPPED), case("a", CaseStatus.FAILED), CaseStatus.FAILED),
        (case("a", CaseStatus.SKIPPED), case("a", CaseStatus.SKIPPED), CaseStatus.SKIPPED),
    ],
)
def test_what_two_shards_say_of_one_case(one: CaseResult, other: CaseResult, status: CaseStatus) -> None:
    (found,) = joined(scope(one), scope(other)).cases
    assert found.status is status


def test_a_case_that_one_shard_did_not_reach_and_another_was_not_asked_for_is_no_deselection() -> None:
    (found,) = joined(scope(DESELECTED), scope(NEVER)).cases
    assert found.reason == NEVER.reason


def test_skipped_here_and_passed_there_is_named() -> None:
    notes = joined(scope(case("a", CaseStatus.SKIPPED)), scope(case("a"))).notes
    assert any("1 cases were run by several shards, with several outcomes: a" in note for note in notes)


def test_times_are_not_pooled() -> None:
    one = scope(case("a"), samples=(samples("a", (1.0, 2.0), ""),))
    other = scope(case("a"), samples=(samples("a", (3.0, 4.0), ""),))
    found = joined(one, other)
    assert [row.values for row in found.samples] == [(1.0, 2.0)]
    assert "a: its times are those of shard 1 alone" in found.notes


def test_what_speaks_against_the_times_of_a_shard_speaks_against_the_whole() -> None:
    """Two runners that were busy alike are told once."""
    one, other = (scope(case(name), doubts=("while it ran, others ran", name)) for name in "ab")
    assert joined(one, other, scope(case("c"))).doubts == ("while it ran, others ran", "a", "b")


def test_times_of_two_kinds_of_machine_are_refused() -> None:
    timed = scope(case("a"), samples=(samples("a", (1.0,), ""),))
    facts = (MACHINE, {**MACHINE, "cpu.model": "Another CPU"})
    with pytest.raises(EvidenceError, match=r"shard 1 and shard 2 are of two machines: cpu\.model"):
        joined(timed, scope(case("b")), facts=facts)
    assert len(joined(scope(case("a")), scope(case("b")), facts=facts).cases) == 2
    assert join_facts(list(facts))["cpu.model"] == "several: Some CPU; Another CPU"


@pytest.mark.parametrize("key", ["device_key", "git.commit", "native.sha256"])
def test_shards_are_of_one_source(key: str) -> None:
    with pytest.raises(EvidenceError, match=f"differ in {key}"):
        joined(scope(case("a")), scope(case("b")), facts=(MACHINE, {**MACHINE, key: "another"}))


def test_other_tokens_are_a_conflict_and_a_failed_case_s_figures_are_none() -> None:
    one, other = scope(case("a"), tokens=(tokens("a"),)), scope(case("a"), tokens=(tokens("a", "b" * 64),))
    with pytest.raises(EvidenceError, match="1 exact figures differ between shards: a greedy"):
        joined(one, other)
    failed = scope(case("a", CaseStatus.FAILED), metrics=(metric("a", 1),))
    assert joined(failed, scope(case("a"), metrics=(metric("a", 2),))).cases[0].status is CaseStatus.FLAKY


def test_problems_exit_codes_and_seconds_of_all_shards() -> None:
    dead = ScopeEvidence("kernels", argv=("pytest", "-x"), exit_code=3, seconds=5.0, problem="died")
    found = joined(scope(case("a")), dead)
    assert (found.exit_code, found.seconds, found.problem) == (3, 5.0, "shard 2: died")
    assert found.argv == ("pytest", ";", "pytest", "-x")
    # Nobody knows how a shard without an exit code ended, so nobody knows it of the whole.
    assert joined(scope(case("a")), replace(dead, exit_code=None)).exit_code is None
