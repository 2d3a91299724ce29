"""May these two be compared, and if not, what is the first thing that differs? Pure.

Three classes of facts: a device key decides whether anything is compared; the timing contract decides whether times
are; the rest is shown or, where it moves by itself, ignored. The lists are explicit so that they can be argued about.
"""

from __future__ import annotations

from harness.model import Samples
from harness.verdict import Difference

UNKNOWN = "unknown"

# What must agree before two times may stand side by side, and why.
TIMING_CONTRACT = {
    "cpu.model": "another processor",
    "cpu.signature": "another generation of processor",
    "cpu.count": "another number of processors",
    "cpu.usable": "the process may use another number of processors",
    "cpu.flags": "other vector instructions",
    "cpu.governor": "another frequency governor",
    "gpu.names": "other GPUs",
    "gpu.uuids": "another set of GPUs; sets are not pooled",
    "gpu.count": "another number of GPUs",
    "gpu.ecc": "another ECC setting",
    "gpu.driver": "another driver",
    "torch.version": "another torch",
    "numpy.version": "another numpy",
    "triton.version": "another triton",
    "python.version": "another Python",
    "python.implementation": "another Python implementation",
    "python.debug_build": "a debug build of Python",
    "python.optimize": "another -O level",
    "native.compiler": "another compiler built the native library",
}
WORKLOAD = "workload."  # what a foreign tool says it was asked to do
REQUIRED = {"cpu.model": "the processor is not recorded"}

# Allow-listed variables that change neither numbers nor clocks. Every other one is a precision or scheduling flag.
TOLERATED_VARIABLES = frozenset(
    {
        "env.CI",
        "env.PYTHONUNBUFFERED",
        "env.PYTEST_ADDOPTS",
        "env.PYTEST_PLUGINS",
        "env.PYTEST_DISABLE_PLUGIN_AUTOLOAD",
        "env.CUDA_VISIBLE_DEVICES",  # gpu.uuids says which GPUs they were
        "env.SM70_NATIVE_LIBRARY",  # native.sha256 says which library it was
        "env.SM70_RUN_DIR",
    }
)
# Facts that move while nothing is changed; they are recorded and never mentioned.
JITTER = frozenset({"cpu.mhz", "cpu.load1", "memory.available_gib", "host.name"})
JITTER_PREFIXES = ("git.",)


def differences(base: dict[str, str], head: dict[str, str], *, assume_comparable: bool = False) -> list[Difference]:
    """Every fact in which two environments differ or that both lack, fatal ones first, in a fixed order."""
    found = []
    for key in sorted({*base, *head, "device_key", "native.sha256", *REQUIRED}):
        if key in JITTER or key.startswith(JITTER_PREFIXES) or key.endswith(".reason"):
            continue
        one, other = base.get(key, UNKNOWN), head.get(key, UNKNOWN)
        verdict = _judged(key, one, other)
        if verdict is None:
            continue
        fatal, reason = verdict
        if fatal and assume_comparable:
            fatal, reason = False, f"{reason}; assumed comparable by --assume-comparable"
        found.append(Difference(key, one, other, fatal, reason))
    return sorted(found, key=lambda row: (not row.fatal, row.key != "device_key"))


def _judged(key: str, base: str, head: str) -> tuple[bool, str] | None:
    """Whether a fact forbids comparing times, and why; ``None`` where there is nothing to say."""
    if key == "device_key":
        if base == head and base != UNKNOWN:
            return None
        return (
            True,
            "the device is not recorded" if base == head else "another device: results hold under their own key",
        )
    if key == "native.sha256":
        if base == head:
            return None
        if UNKNOWN in (base, head):
            return True, "the digest of the native library is recorded on one side only"
        return False, "the native library was built anew"
    if key == "python.version" and base.split(".")[:2] == head.split(".")[:2]:
        return None if base == head else (False, "another patch release of Python")
    if key in REQUIRED and base == head == UNKNOWN:
        return True, REQUIRED[key]
    if base == head:
        return None
    if key in TIMING_CONTRACT:
        return True, TIMING_CONTRACT[key]
    if key.startswith("env.") and key not in TOLERATED_VARIABLES:
        return True, "a flag that changes numbers or scheduling"
    if key.startswith(WORKLOAD):
        return True, "another workload"
    return False, "recorded, tolerated"


def is_asked_for(key: str) -> bool:
    """Whether a fact takes part in a verdict, so that a baseline has to keep it."""
    flag = key.startswith("env.") and key not in TOLERATED_VARIABLES
    return (
        flag
        or key.startswith(WORKLOAD)
        or key in TIMING_CONTRACT
        or key in REQUIRED
        or key in ("device_key", "native.sha256")
    )


def other_device(rows: list[Difference]) -> Difference | None:
    """The difference that forbids comparing anything, if there is one."""
    return next((row for row in rows if row.key == "device_key" and row.fatal), None)


def said(row: Difference) -> str:
    """A difference as a reason: what it is and both values."""
    return f"{row.key}: base {row.base}, head {row.head} ({row.reason})"


def samples_obstacle(base: Samples, head: Samples, natural_stop: tuple[bool, bool]) -> str:
    """Why two sample sets of one name may not be judged although the machines agree; empty when they may."""
    if base.unfit or head.unfit:
        side, unfit = ("head", head.unfit) if head.unfit else ("base", base.unfit)
        return f"{side} is unfit for timing: {'; '.join(unfit)}"
    if base.token_sha256 != head.token_sha256:
        return f"other tokens were generated: base {base.token_sha256 or 'none'}, head {head.token_sha256 or 'none'}"
    if not all(natural_stop):
        side = "base" if not natural_stop[0] else "head"
        return f"{side} did not stop naturally: a length limit ended it"
    return ""
