"""The wording of the nights: what they agree in, as the text of an issue or as a summary of the latest one."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from harness.report.document import (
    Block,
    Bullets,
    Cell,
    CellKind,
    Count,
    Document,
    Fact,
    Facts,
    Line,
    Paragraph,
    Section,
    Tone,
    Verdict,
)
from harness.report.sections import changes
from harness.report.sections import rows as shared
from harness.report.sections.rows import Footnotes
from harness.report.words import EXIT_MEANING, count, device_limits, number, short_hash, shortened, visible
from harness.trends.nights import NIGHTS_TO_CONFIRM, Confirmed, Finding, Night, bad_in_a_row, confirmed
from harness.verdict import CaseRow, ExitCode

_TITLE_LIMIT = 100
_REST = "the nights' own reports list every row"


def issue_title(nights: Sequence[Night]) -> str:
    """One line for an issue about what the latest nights agree in; there must be something."""
    held = confirmed(nights)
    about = shortened(_about(held[0].finding), _TITLE_LIMIT)
    more = f" and {len(held) - 1} more" if len(held) > 1 else ""
    return f"Nightly on {visible(nights[-1].evidence.device_key)}: {_outcome(held[0].finding)} {about}{more}"


def build_nights_document(nights: Sequence[Night], places: Mapping[str, str], not_read: Sequence[str] = ()) -> Document:
    """All that the nights say: what is confirmed, what is new in the latest, where to look, every night.

    ``places`` holds, by digest, where each bundle lies, so that the commands can be typed as they stand.
    """
    held = confirmed(nights)
    keys = {streak.finding.key for streak in held}
    fresh = [finding for finding in nights[-1].findings if finding.key not in keys]
    latest, footnotes = nights[-1].evidence, Footnotes()
    sections = (
        _findings(held, fresh, footnotes),
        _where(nights, held, places),
        _every_night(nights),
        _limits(latest.device_key, not_read),
    )
    return Document(
        kind="Nightly",
        title=f"{count(len(nights), 'night')} on {visible(latest.device_key)}",
        stamp=(visible(latest.device_key), visible(latest.created)),
        verdict=_verdict(nights, held, fresh),
        subject=(
            Fact("Latest night", visible(latest.label)),
            Fact("Device key", visible(latest.device_key), code=True),
            Fact("Commit", _commit(nights[-1])),
            Fact("Manifest", latest.digest, code=True),
        ),
        sections=sections,
        footnotes=footnotes.texts,
        foot="Every night is a sealed bundle that can be checked by itself: harness verify BUNDLE.",
    )


def _verdict(nights: Sequence[Night], held: Sequence[Confirmed], fresh: Sequence[Finding]) -> Verdict:
    bad = bad_in_a_row(nights)
    code = ExitCode.REGRESSION if held else ExitCode.OK
    if held:
        word, tone = "Confirmed regression", Tone.BAD
        sentence = f"{count(len(held), 'finding')} in each of the last {NIGHTS_TO_CONFIRM} nights or more."
    elif bad >= NIGHTS_TO_CONFIRM:
        word, tone = "Bad nights that agree in nothing", Tone.DOUBT
        sentence = f"{number(bad)} nights in a row are not green, and the last two have no finding in common."
    elif bad:
        word, tone = "One bad night", Tone.DOUBT
        sentence = "The latest night is not green. One night confirms nothing."
    else:
        word, tone = "Green", Tone.GOOD
        sentence = "The latest night shows nothing worse."
    of_nights = f"of {count(len(nights), 'night')}"
    counts = (
        Count(number(len(held)), "confirmed", f"{NIGHTS_TO_CONFIRM} nights or more", Tone.BAD if held else Tone.QUIET),
        Count(number(len(fresh)), "unconfirmed", "in the latest night", Tone.DOUBT if fresh else Tone.QUIET),
        Count(number(bad), "bad in a row", of_nights, Tone.DOUBT if bad else Tone.QUIET),
    )
    reasons = tuple(map(visible, nights[-1].decision.reasons))
    return Verdict(word, sentence, tone, f"exit {int(code)} ({EXIT_MEANING[code]})", reasons, counts)


# ---- sections -------------------------------------------------------------------------------------------------------


def _findings(held: Sequence[Confirmed], fresh: Sequence[Finding], footnotes: Footnotes) -> Section:
    blocks: list[Block] = []
    for key, caption, found in (
        ("regressions", "Confirmed: the latest nights agree in it", held),
        ("doubts", "In the latest night alone: not confirmed", [Confirmed(finding, 1) for finding in fresh]),
    ):
        if found:
            blocks.append(
                shared.table(
                    key, caption, changes.COLUMNS, found, lambda s: _cells(s, footnotes), row_header=1, rest=_REST
                )
            )
    if not blocks:
        blocks.append(Paragraph("The latest night has no finding.", Tone.GOOD))
    brief = [Line(_outcome(s.finding), _about(s.finding), Tone.BAD, _lasted(s)) for s in held]
    brief += [Line(_outcome(finding), _about(finding), Tone.DOUBT, "not confirmed") for finding in fresh]
    lead = (
        "A finding is confirmed when consecutive nights, each with processes of its own, agree in it. A night is held "
        "against the baseline; where that is silent, against the last green night."
    )
    return Section("changed", "What went wrong", lead, tuple(blocks), tuple(brief))


def _cells(streak: Confirmed, footnotes: Footnotes) -> tuple[Cell, ...]:
    finding = streak.finding
    if finding.row is not None:
        *cells, why = changes.cells(finding.row, footnotes)
    else:
        cells = [Cell("PROBLEM", CellKind.OUTCOME, Tone.BAD), shared.text(_about(finding)), *[shared.text("—")] * 2]
        why = shared.text(finding.problem)
    lasted = f"{_lasted(streak)}; " if streak.nights > 1 else ""
    return (*cells, replace(why, text=f"{lasted}{why.text}"))


def _lasted(streak: Confirmed) -> str:
    return f"{streak.nights} nights in a row"


def _outcome(finding: Finding) -> str:
    return "PROBLEM" if finding.row is None else finding.row.outcome.value


def _about(finding: Finding) -> str:
    if finding.row is None:
        return f"scope {visible(finding.scope)}"
    return visible(finding.row.node if isinstance(finding.row, CaseRow) else shared.metric_label(finding.row))


def _where(nights: Sequence[Night], held: Sequence[Confirmed], places: Mapping[str, str]) -> Section:
    """The commits between the last green night and the first bad one, and the commands that show more."""
    latest = nights[-1]
    place = places[latest.evidence.digest]
    lead = "No night before the latest was green, so no commit is under suspicion more than another."
    facts: list[Fact] = []
    if latest.green_before is not None:
        green, first_bad = nights[latest.green_before], nights[latest.green_before + 1]
        lead = "What changed between the last green night and the one after it."
        facts += [
            Fact("Last green", f"{visible(green.evidence.label)}, commit {_commit(green)}"),
            Fact("The night after", f"{visible(first_bad.evidence.label)}, commit {_commit(first_bad)}"),
        ]
        if latest.green_before < len(nights) - 1:
            commits = f"{_commit(green)}..{_commit(first_bad)}"
            same = green.evidence.commit == first_bad.evidence.commit
            facts.append(
                Fact("Commits", "the same commit: look at the machine first")
                if same
                else Fact("Commits", f"git log --oneline {commits}", code=True)
            )
            facts.append(Fact("Compare", _command(places[green.evidence.digest], place), code=True))
    row = held[0].finding.row if held else None
    if row is not None:
        facts.append(Fact("Explain", _command("baselines", place, "--explain", row.node), code=True))
    blocks = (Facts("Between green and bad", tuple(facts)),) if facts else ()
    return Section("where", "Where to look", lead, blocks)


def _command(*arguments: str) -> str:
    return visible(shlex.join(["python", "-m", "harness", "compare", *arguments]))


def _commit(night: Night) -> str:
    return visible(night.evidence.commit[:12]) or "unknown"


def _every_night(nights: Sequence[Night]) -> Section:
    def cells(night: Night) -> tuple[Cell, ...]:
        code = night.decision.code
        word = "GREEN" if night.green else "BAD"
        return (
            Cell(word, CellKind.OUTCOME, Tone.GOOD if night.green else Tone.BAD),
            shared.code(night.evidence.label),
            shared.text(night.evidence.created),
            shared.code(_commit(night)),
            shared.text(f"{int(code)} ({EXIT_MEANING[code]})"),
            shared.whole(len(night.findings)),
            shared.code(short_hash(night.evidence.digest)),
        )

    columns = ("Night", "Bundle", "Measured", "Commit", "Gate", "Findings", "Manifest")
    table = shared.table("nights", "Every night, latest first", columns, nights[::-1], cells, row_header=1, rest=_REST)
    return Section("every", "Nights", "", (table,))


def _limits(device_key: str, not_read: Iterable[str]) -> Section:
    blocks: list[Block] = [Bullets(device_limits(device_key))]
    if unread := tuple(map(visible, not_read)):
        blocks.append(Bullets(unread, "Bundles that do not verify and are left out", Tone.BAD))
    return Section("limits", "Not claimed", "", tuple(blocks), tuple(Line("not read", text) for text in unread))
