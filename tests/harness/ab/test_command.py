"""``harness ab`` on real repositories with real processes: verdicts, refusals, and what is kept."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path

from harness.bundles.bundle import open_bundle
from harness.sources import open_evidence
from tests.harness.ab.project import Project
from tests.harness.conftest import Ran, call_here

Ab = Callable[..., Ran]
PAIRS_OF_EIGHT = "bh" + "bhhb" * 2 + "bb" + "bhhb" * 2 + "hh"
"""First letters of the workers in the order in which they began: warm-up, pairs, a control pair after every fourth."""


def _run(project: Project, side: str) -> Path:
    (run,) = (project.root / "artifacts" / "ab" / "sessions").glob(f"*-{side}")
    return run


def test_a_slower_commit_is_found_after_eight_pairs(project: Project, ab: Ab) -> None:
    project.commit("base")
    project.commit("head", round=0.0105)
    ran = ab("HEAD~1", "HEAD")
    assert ran.code == 1, ran.err
    assert "WORSE     ab::fast round +" in ran.out
    assert "margin 1.00 % (floor)" in ran.out
    assert "decided after 8 of 24 pairs" in ran.err
    assert "interleaved by rounds: base and head take turns" in ran.out
    assert project.order() == PAIRS_OF_EIGHT


def test_the_same_commit_twice_is_the_same(project: Project, ab: Ab) -> None:
    project.commit("only")
    ran = ab("HEAD", "HEAD")
    assert ran.code == 0, ran.err
    assert "SAME      ab::fast round" in ran.out
    assert "SAME" in ran.out.split("time to first token")[0]


def test_arms_that_share_a_process_are_run_together(project: Project, ab: Ab) -> None:
    project.commit("base")
    project.commit("head")
    ran = ab("HEAD~1", "HEAD", "--pairs", "10", arms=("fast", "slow"))
    assert ran.code == 0, ran.err
    assert project.order() == PAIRS_OF_EIGHT
    assert "ab::slow round" in ran.out


def test_a_worker_that_takes_no_turns_and_a_wish_for_whole_processes(project: Project, ab: Ab) -> None:
    project.commit("base", no_turns=True)
    project.commit("head", round=0.0105)
    ran = ab("HEAD~1", "HEAD")
    assert ran.code == 1, ran.err
    assert "interleaved by processes: base, head, head, base (fast of base takes no turns)" in ran.out
    assert project.order() == "bh" + "bhhb" * 4
    assert "(as --whole asks)" in ab("HEAD", "HEAD", "--whole", "--pairs", "8").out


def test_an_old_worker_is_asked_for_one_arm_at_a_time(project: Project, ab: Ab) -> None:
    project.commit("base", old=True)
    project.commit("head")
    ran = ab("HEAD~1", "HEAD", "--pairs", "10", arms=("fast", "slow"))
    assert ran.code == 0, ran.err
    assert project.order().startswith("bhbh" + "bhhbbhhb")


def test_uncommitted_work_is_measured_and_named_by_its_digest(project: Project, ab: Ab) -> None:
    project.commit("base")
    before = project.git("status", "--porcelain")
    project.say("head", round=0.0105)
    (project.root / "new.txt").write_text("not added")
    ran = ab("HEAD", "WORKTREE")
    assert ran.code == 1, ran.err
    assert "+ dirty" in ran.err
    evidence = open_evidence(_run(project, "head"))
    assert evidence.commit == project.git("rev-parse", "HEAD")
    assert len(evidence.dirty_digest) == 40
    assert before == ""
    assert project.git("status", "--porcelain").split("\n") == ["M worker.json", "?? new.txt"]
    assert "uncommitted changes are not in HEAD: say WORKTREE" in ab("HEAD", "HEAD", "--pairs", "8").err


def test_the_evidence_is_sealed_and_verifies(project: Project, ab: Ab) -> None:
    project.commit("base")
    project.commit("head", round=0.0105)
    ran = ab("HEAD~1", "HEAD")
    place = project.root / next(line for line in ran.out.splitlines() if line.startswith("sealed")).split()[1]
    bundle = open_bundle(place)
    (row,) = [row for row in bundle.verdict.comparison.metrics if row.name == "round"]
    assert row.outcome == "WORSE"
    assert row.interval is not None
    assert "exact over all looks" in row.interval.method
    assert any("far from" in note or "pairs" in note for note in row.notes)
    report = (place / "data" / "report.html").read_text()
    assert "ratio-forest" in report
    assert "fast of head: 104 steps were made when the other side had ended already" in report
    # The records follow from what the workers printed: a changed repeat is noticed.
    run = _run(project, "head")
    repeat = sorted((run / "ab" / "repeats").iterdir())[3]
    repeat.write_text(repeat.read_text().replace("10.0,", "10.001,", 1))
    said = call_here(project.root, "seal", str(run), "--against", "none", "--out", "elsewhere")
    assert (said.code, "does not follow from the repeats" in said.err) == (3, True)


def test_both_sides_are_held_to_every_control_pair(project: Project, ab: Ab) -> None:
    project.commit("only")
    assert ab("HEAD", "HEAD", "--pairs", "8").code == 0
    controls = "control01a-fast.json control01b-fast.json control02a-fast.json control02b-fast.json"
    for side in ("base", "head"):
        folder = _run(project, side) / "ab"
        assert " ".join(sorted(path.name for path in (folder / "repeats").glob("control*"))) == controls
        (samples, _) = open_evidence(_run(project, side)).scopes[0].samples
        assert samples.pairing is not None
        assert samples.pairing.control is not None
        assert len(samples.pairing.control) == 2
    # A control that says more than the margin does is no evidence for that margin.
    for part in ("01b", "02b"):
        repeat = _run(project, "head") / "ab" / "repeats" / f"control{part}-fast.json"
        answer = json.loads(repeat.read_text())
        first, *later = answer[0]["runs"][0]["token_ts"]
        answer[0]["runs"][0]["token_ts"] = [first, *(first + 1.1 * (at - first) for at in later)]
        repeat.write_text(json.dumps(answer))
    said = call_here(project.root, "seal", str(_run(project, "head")), "--against", "none", "--out", "elsewhere")
    assert (said.code, "less than its A/A control of 0.0" in said.err) == (3, True)


def test_other_tokens_end_it_at_once_with_position_and_gap(project: Project, ab: Ab) -> None:
    project.commit("base")
    project.commit("head", tokens=[*range(100, 107), 7, *range(108, 113)])
    ran = ab("HEAD~1", "HEAD")
    assert ran.code == 4, ran.err
    assert "other tokens: prompt 'p', token 7: 107, then 7" in ran.out
    assert "base: logit of 107 is 10.00000, of 7 9.75000, gap +0.25000" in ran.out
    assert project.order() == "bh"


def test_a_length_stop_and_a_watched_worker_are_refused(project: Project, ab: Ab) -> None:
    project.commit("base", finish="length")
    ran = ab("HEAD", "HEAD")
    assert (ran.code, "ended by 'length', not by itself" in ran.out) == (4, True)
    project.commit("watched", unfit=["sys.setprofile holds a hook"])
    ran = ab("HEAD", "HEAD")
    assert (ran.code, "unfit for timing: sys.setprofile holds a hook" in ran.out) == (4, True)


def test_head_that_crashes_is_a_regression_and_what_was_measured_is_kept(project: Project, ab: Ab) -> None:
    project.commit("base")
    project.commit("head", crash_after=9, says="a kernel fell over")
    ran = ab("HEAD~1", "HEAD")
    assert ran.code == 1, ran.err
    assert "ended with exit code 3:\na kernel fell over" in ran.out
    counted = json.loads((_run(project, "base") / "ab" / "scope.json").read_text())["ab"]["counted"]["fast"]
    assert counted


def test_base_that_is_killed_proves_nothing_about_head(project: Project, ab: Ab) -> None:
    project.commit("base", crash_after=0, killed=True)
    project.commit("head")
    ran = ab("HEAD~1", "HEAD")
    assert ran.code == 4, ran.err
    assert "repeat 000 of base" in ran.out
    assert "died of SIGKILL" in ran.out


def test_a_clock_that_goes_backwards_is_broken_evidence(project: Project, ab: Ab) -> None:
    project.commit("base")
    project.commit("head", backwards=True)
    ran = ab("HEAD~1", "HEAD")
    assert ran.code == 3, ran.err
    assert "the clock did not move forwards" in ran.out


def test_a_commit_or_arm_that_is_not_there(project: Project, ab: Ab) -> None:
    project.commit("base")
    ran = ab("nonsense", "HEAD")
    assert (ran.code, "there is no commit 'nonsense' here" in ran.err) == (2, True)
    ran = ab("HEAD", "HEAD", arms=("none-such",))
    assert (ran.code, "has no arm none-such" in ran.err) == (2, True)
    assert "give --arm with one of: fast, slow" in ran.err


def test_a_library_named_for_both_is_refused(project: Project) -> None:
    project.commit("base")
    ran = call_here(project.root, "ab", "HEAD", "HEAD", env={"SM70_NATIVE_LIBRARY": "/somewhere.so"})
    assert (ran.code, "both sides would load /somewhere.so" in ran.err) == (2, True)


def test_a_build_that_fails_keeps_the_other_sides_evidence(project: Project, ab: Ab) -> None:
    project.commit("base")
    native = project.root / "native"
    native.mkdir()
    (native / "__init__.py").touch()
    (native / "build.py").write_text("raise SystemExit('undefined reference to sm70_gone')\n")
    project.commit("head")
    ran = ab("HEAD~1", "HEAD")
    assert ran.code == 2, ran.err
    assert "undefined reference to sm70_gone" in ran.err
    assert "base was measured by itself" in ran.err
    evidence = open_evidence(_run(project, "base"))
    (scope,) = evidence.scopes
    assert [len(samples.values) for samples in scope.samples] == [3, 3]


def test_a_library_is_built_once_for_commits_that_agree_in_it(project: Project, ab: Ab, tmp_path: Path) -> None:
    built = tmp_path / "built.txt"
    native = project.root / "native"
    native.mkdir()
    (native / "__init__.py").touch()
    (native / "build.py").write_text(
        "import sys\nfrom pathlib import Path\n"
        "out = Path(sys.argv[sys.argv.index('--out') + 1])\nassert (out / 'device' / 'a.ptx').exists()\n"
        f"(out / 'libsm70.so').write_bytes(b'x')\nwith open({str(built)!r}, 'a') as stream: stream.write('built ')\n"
    )
    project.commit("base")
    project.commit("head")
    (project.root / "artifacts" / "native" / "device").mkdir(parents=True)
    (project.root / "artifacts" / "native" / "device" / "a.ptx").touch()  # lent to every build
    assert ab("HEAD~1", "HEAD", "--pairs", "8").code == 0
    assert built.read_text() == "built "
    (native / "more.c").write_text("int x;\n")
    project.commit("third")
    assert ab("HEAD~1", "HEAD", "--pairs", "8").code == 0
    assert built.read_text() == "built built "


def test_a_dirty_submodule_is_refused(project: Project, ab: Ab, tmp_path: Path) -> None:
    library = Project(tmp_path / "library")
    library.commit("library")
    project.commit("base")
    project.git("submodule", "add", "-q", str(library.root), "vendored")
    project.git("commit", "-q", "-m", "submodule")
    (project.root / "vendored" / "worker.json").write_text("{}")
    ran = ab("HEAD", "WORKTREE")
    assert (ran.code, "submodule vendored has uncommitted changes of its own" in ran.err) == (2, True)


def test_bisect_names_the_first_slower_commit(project: Project, ab: Ab) -> None:
    project.commit("good")
    for number in range(5):
        project.commit(f"commit-{number}", round=0.0106 if number >= 3 else 0.010)
    ran = ab("--bisect", "HEAD~5", "HEAD")
    assert ran.code == 1, ran.err
    assert ran.out.splitlines()[-1].startswith("first slower than HEAD~5: ")
    assert ran.out.splitlines()[-1].endswith("commit-3")
    nothing = ab("--bisect", "HEAD~5", "HEAD~3")
    assert (nothing.code, "there is nothing to find" in nothing.out) == (0, True)
    unknown = ab("--bisect", "HEAD~5", "HEAD", "--pairs", "2", "--strict")
    assert (unknown.code, "is not known: give more --pairs or --budget" in unknown.out) == (5, True)


def _library(folder: Path, content: str, sources: str) -> None:
    """A library with its build record, as a build elsewhere leaves them."""
    folder.mkdir()
    (folder / "libsm70.so").write_text(content)
    digest = hashlib.sha256(content.encode()).hexdigest()
    (folder / "build.json").write_text(json.dumps({"source_digest": sources, "library_sha256": digest}))


def test_libraries_built_elsewhere_go_to_the_side_whose_sources_they_are_of(
    project: Project, ab: Ab, tmp_path: Path
) -> None:
    native = project.root / "native"
    native.mkdir()
    (native / "__init__.py").touch()
    (native / "build.py").write_text(
        "from pathlib import Path\n\n\ndef source_digest():\n"
        "    return Path(__file__).with_name('more.c').read_text().strip()\n\n\n"
        "if __name__ == '__main__':\n    raise SystemExit('there is no compiler here')\n"
    )
    for sources in ("one", "two"):
        (native / "more.c").write_text(f"{sources}\n")
        project.commit(sources)
        _library(tmp_path / sources, f"library {sources}", sources)
    first, second = (("--library", str(tmp_path / sources)) for sources in ("one", "two"))

    ran = ab("HEAD~1", "HEAD", *second, *first)
    assert ran.code == 0, ran
    trees = {
        name: project.root / "artifacts/ab/trees" / project.git("rev-parse", name)[:12] for name in ("HEAD~1", "HEAD")
    }
    found = {name: (tree / "artifacts/native/libsm70.so").read_text() for name, tree in trees.items()}
    assert found == {"HEAD~1": "library one", "HEAD": "library two"}

    ran = ab("HEAD~1", "HEAD", *first)
    assert ran.code == 2
    assert re.search(r"HEAD \(\w+\): no --library is of its native sources two; \S+/one is of one", ran.err), ran.err

    (tmp_path / "one" / "libsm70.so").write_text("another")
    ran = ab("HEAD~1", "HEAD", *first)
    assert (ran.code, "libsm70.so is not the one that build.json is of" in ran.err) == (2, True)
    ran = ab("HEAD~1", "HEAD", "--library", str(tmp_path))
    assert (ran.code, "no library with a build record" in ran.err) == (2, True)
