"""The inks of the pictures, one for each role, and what each outcome's tone looks like in them.

They are the Okabe-Ito set, darkened until they can also be read as text on white: people who do not see red and green
apart still tell them apart. ``html`` swaps each ink for a style variable of the same name, light or dark.
"""

from __future__ import annotations

from harness.report.document import Tone

INKS = {
    "ink": "#1c1e21",
    "faint": "#8a8d91",
    "grid": "#dcdedf",
    "band": "#e9ebec",
    "head": "#0072b2",
    "base": "#8a5f00",
    "good": "#00694e",
    "bad": "#b3380f",
    "doubt": "#7d4a8f",
}
# Under a picture that stands alone: its inks are for light paper, whatever page is around it. ``html`` takes it away.
PAPER = "#fdfdfb"
TONE_INKS = {
    Tone.GOOD: INKS["good"],
    Tone.BAD: INKS["bad"],
    Tone.DOUBT: INKS["doubt"],
    Tone.QUIET: INKS["head"],
    Tone.PLAIN: INKS["head"],
}
# A shape a tone, so that a colour never stands alone.
TONE_MARKS = {Tone.GOOD: "<", Tone.BAD: "D", Tone.DOUBT: "s", Tone.QUIET: "o", Tone.PLAIN: "o"}
