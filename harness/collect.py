"""A run folder -> ``Evidence``, before it is sealed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from harness.bundles.claims import not_claimed
from harness.errors import EvidenceError, UsageError
from harness.evidence import read_scope
from harness.model import Evidence, ScopeEvidence
from harness.rundir import ASIDE, SCOPE_NAME, read_json, read_scope_json, resume_command
from harness.typed import typed


def scope_folders(run: Path) -> list[Path]:
    """The scopes of a run, by name. Raises where one is unfinished."""
    if not (run / "run.json").is_file():
        raise UsageError(
            f"{run} is no run folder (it has no run.json)", "give a folder that `python -m harness run` wrote"
        )
    folders = sorted(path for path in run.iterdir() if path.is_dir() and SCOPE_NAME.fullmatch(path.name))
    for aside in sorted(run.glob(f"*{ASIDE}")):
        raise EvidenceError(
            f"{aside}: a new try was killed as it began", f"finish it: {resume_command(run, aside.stem)}"
        )
    if not folders:
        raise EvidenceError(f"{run}: no scope was run", f"run one: {typed('run', 'SCOPE', '--run-dir', str(run))}")
    for folder in folders:
        record = read_scope_json(folder)
        again = resume_command(run, folder.name)
        if (folder / "source").is_dir():  # other tools' files: nothing of ours can run them again
            again = typed("ingest", "FILE", "--scope", folder.name, "--run-dir", str(run))
        if record is None or record["state"] == "interrupted":
            raise EvidenceError(f"{folder}: this scope is unfinished", f"finish it with: {again}")
        if record["state"] == "refused":
            raise UsageError(f"{folder}: {record['problem']}", f"mend that, then: {again}")
    return folders


def collect(run: Path, label: str, known_scopes: list[str]) -> Evidence:
    """All that a run shows, in the words of the harness. Raises ``EvidenceError`` where its files contradict."""
    folders = scope_folders(run)
    facts = {str(k): str(v) for k, v in read_json(folders[0] / "environment.json").items()}
    scopes = tuple(read_scope(folder, facts) for folder in folders)
    return describe(label, str(read_json(run / "run.json")["created"]), facts, scopes, known_scopes)


def describe(
    label: str, created: str, facts: dict[str, str], scopes: tuple[ScopeEvidence, ...], known_scopes: list[str]
) -> Evidence:
    """Evidence of ``scopes`` under the common ``facts``, with what it does not claim."""
    keys = {scope.environment.get("device_key", facts["device_key"]) for scope in scopes}
    if len(keys) > 1:
        raise EvidenceError(f"{label}: scopes of several devices ({', '.join(sorted(keys))}) do not go into one bundle")
    evidence = Evidence(
        label=label,
        device_key=facts["device_key"],
        scopes=scopes,
        created=created,
        commit=facts.get("git.commit", ""),
        dirty_digest=facts.get("git.dirty_digest", ""),
        native_sha256=facts.get("native.sha256", ""),
        environment=facts,
    )
    return replace(evidence, not_claimed=not_claimed(evidence, known_scopes))
