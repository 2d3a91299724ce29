"""A study as a report: whether the targets are met, the rates and their picture, every trial, the machine. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from harness.power.study import Result, Study
from harness.power.summary import OURS, TARGETS, Rate, Target
from harness.report.document import (
    AlarmRate,
    Alarms,
    AlarmTrial,
    Cell,
    CellKind,
    Count,
    Document,
    Fact,
    Facts,
    Figure,
    Paragraph,
    Section,
    Table,
    Tone,
    Verdict,
)
from harness.report.words import count, visible

FIGURE = "alarms"
_FACTS = ("cpu.model", "cpu.count", "device_key", "power.replicate", "os.kernel", "torch.version", "native.sha256")
_RULES = ("ours", "Mann-Whitney", "mean + 5 %")


def build_power_document(study: Study, found: Sequence[Rate], targets: Sequence[Target]) -> Document:
    """Everything that a study says. ``study`` has at least one trial."""
    missed, shown = [t for t in targets if t.met is False], [t for t in targets if t.met is not None]
    if missed:
        word, tone = "Targets missed", Tone.BAD
    elif len(shown) < len(targets):
        word, tone = "Targets not shown yet", Tone.DOUBT
    else:
        word, tone = "Targets met", Tone.GOOD
    machine = visible(study.machines[0].get("cpu.model", "?")) if study.machines else "an unknown machine"
    ours = [rate for rate in found if rate.rule == OURS]
    return Document(
        kind="Power study",
        title=f"{count(len(study.results), 'trial')} with planted delays",
        stamp=(machine,),
        verdict=Verdict(
            word,
            "; ".join(target.text for target in targets) + ".",
            tone,
            "nothing is judged by this page",
            (),
            tuple(
                Count(f"{rate.alarms} of {rate.trials}", "alarms", f"at {rate.delay} %", Tone.PLAIN, "rates")
                for rate in ours
            ),
        ),
        subject=(Fact("Machine", machine),),
        sections=(_rates(study, found), _trials(study.results), _machines(study)),
        footnotes=(),
        foot="python -m harness power show FILE prints the same figures from the results file.",
    )


def _rates(study: Study, found: Sequence[Rate]) -> Section:
    rows = tuple(
        (
            Cell(f"{rate.delay} %", CellKind.NUMBER, sort=rate.delay),
            Cell(rate.rule),
            Cell(f"{rate.alarms} of {rate.trials}", CellKind.NUMBER, sort=rate.share),
            Cell(f"{100 * rate.low:.0f} to {100 * rate.high:.0f} %", CellKind.NUMBER),
        )
        for rate in found
    )
    columns = ("planted", "rule", "alarms", "exact 95 % interval")
    twin = Table("rates", "Alarms by planted delay", columns, rows, len(rows), row_header=1)
    data = Alarms(
        tuple(AlarmRate(r.rule, r.delay, 100 * r.share, 100 * r.low, 100 * r.high, r.trials) for r in found),
        tuple((delay, 100 * target) for delay, (_, target) in TARGETS.items()),
        tuple(AlarmTrial(r.delay, 100 * (r.ratio - 1), _in_a_row(r)) for r in study.results),
    )
    alt = "Share of trials with an alarm at each planted delay, a line a rule; below, what each trial measured."
    title = "Alarms by planted delay (bars: exact 95 % interval; dashes: target of ours), and what was measured"
    lead = (
        "Ours: pairs that take turns, an interval against a margin. The two others are tried on as many processes of "
        "the same arm, all of base and then all of head. With nothing planted every alarm is a false one."
    )
    return Section("alarms-by-delay", "How often each rule is right", lead, (Figure(FIGURE, title, alt, data, twin),))


def _in_a_row(result: Result) -> float:
    return 100 * (sum(result.head) / sum(result.base) - 1)


def _interval(result: Result) -> str:
    if result.low is None or result.high is None:
        return "none"
    return f"{100 * (result.low - 1):+.2f} to {100 * (result.high - 1):+.2f} %"


def _trials(results: Sequence[Result]) -> Section:
    rows = tuple(
        (
            Cell(f"{r.delay} % #{r.index}", sort=100 * r.delay + r.index),
            Cell(r.ours, CellKind.OUTCOME, Tone.PLAIN),
            Cell(f"{100 * (r.ratio - 1):+.2f} %", CellKind.NUMBER, sort=r.ratio),
            Cell(_interval(r)),
            Cell(str(r.pairs), CellKind.NUMBER),
            Cell(r.mann_whitney),
            Cell(r.mean_threshold),
            Cell(f"{_in_a_row(r):+.1f} %", CellKind.NUMBER, sort=_in_a_row(r)),
            Cell(f"{r.seconds:.0f}", CellKind.NUMBER),
        )
        for r in sorted(results, key=lambda r: (r.delay, r.index))
    )
    columns = ("trial", *_RULES[:1], "pairs say", "interval", "pairs", *_RULES[1:], "means say", "seconds")
    table = Table("trials", "Every trial", columns, rows, len(rows), folded=True)
    return Section("every-trial", "Every trial", "One line a trial, as it was measured.", (table,))


def _machines(study: Study) -> Section:
    blocks = tuple(
        Facts("Machine", tuple(Fact(key, visible(facts[key]), code=True) for key in _FACTS if key in facts))
        for facts in study.machines
    )
    lead = "A study is about this machine, its neighbours at the time, and the arm that was run."
    return Section("measured-on", "Where", lead, blocks or (Paragraph("The file does not say where."),))
