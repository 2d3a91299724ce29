"""Short ways to make evidence for tests of pure code."""

from __future__ import annotations

from harness.model import Better, CaseResult, CaseStatus, Evidence, Metric, Origin, Samples, ScopeEvidence, TokenControl

SHA = "a" * 64
MACHINE = {"device_key": "cpu-x86-64", "cpu.model": "Some CPU", "cpu.count": "2", "native.sha256": "b" * 64}


def case(node: str, status: CaseStatus = CaseStatus.PASSED, reason: str = "") -> CaseResult:
    return CaseResult(node, status, 0.1, reason or ("" if status is CaseStatus.PASSED else "why"))


def tokens(node: str, sha: str = SHA, finish: tuple[str, ...] = ("stop",), per_round: float = 1.0) -> TokenControl:
    return TokenControl(node, "greedy", sha, (sha,), finish, 10, per_round)


def samples(node: str, values: tuple[float, ...], sha: str = SHA, **extra: object) -> Samples:
    control = "greedy" if sha else ""
    return Samples(node, "round_ms", values, "ms", Better.LOWER, control, sha, **extra)  # type: ignore[arg-type]


def metric(node: str, value: float, better: Better = Better.LOWER, unit: str = "register") -> Metric:
    return Metric(node, "count", value, unit, better)


def scope(*cases: CaseResult, name: str = "kernels", **extra: object) -> ScopeEvidence:
    return ScopeEvidence(name, Origin(), ("pytest",), 0, 1.0, tuple(cases), **extra)  # type: ignore[arg-type]


def evidence(*scopes: ScopeEvidence, label: str = "head", facts: dict[str, str] | None = None) -> Evidence:
    environment = MACHINE if facts is None else facts
    return Evidence(label, environment.get("device_key", "unknown"), tuple(scopes), environment=environment)
