"""From foreign files to a scope of a run folder, and back: what was ingested can be ingested again and must agree."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.errors import EvidenceError, UsageError
from harness.files import json_bytes, read_limited, utc_now, write_atomic, write_new, writing
from harness.ingest.benchmarks import READERS
from harness.ingest.foreign import Foreign, to_lines
from harness.junit import SIZE_LIMIT, parse_junit
from harness.records import encode_lines
from harness.rundir import SCHEMA, RunDir

INGEST = 1  # raised when the same files would be read otherwise
FORMS = ("auto", "junit", *READERS)  # the command line repeats them, so that it need not import all of this
_XML_START = re.compile(rb"\A(\xef\xbb\xbf|\xff\xfe|\xfe\xff)?[\s\x00]*<")
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9._-]+")


def ingest_files(files: Sequence[tuple[Path, bytes]], form: str) -> Foreign:
    """Read files of one tool. ``form`` is one of ``FORMS``; ``auto`` looks at the content."""
    if not files:
        raise UsageError("no file to ingest")
    found: Foreign | None = None
    for path, content in files:
        name = _form_of(content, path) if form == "auto" else form
        if found is None:
            found = Foreign(name)
        if name != found.tool:
            raise UsageError(
                f"{path} is of {name}, the first file of {found.tool}", "ingest each tool as its own scope"
            )
        _read(found, name, path, content)
    assert found is not None
    return found


def _form_of(content: bytes, path: Path) -> str:
    if _XML_START.match(content):
        return "junit"
    data = _parsed(content, path)
    forms = [name for name, (matches, _) in READERS.items() if matches(data)]
    if len(forms) != 1:
        raise EvidenceError(
            f"{path}: not the result of a tool that is known here ({', '.join(FORMS[1:])})",
            "say which with --form if you know it",
        )
    return forms[0]


def _read(into: Foreign, form: str, path: Path, content: bytes) -> None:
    if form == "junit":
        report = parse_junit(content, str(path))
        into.cases += report.cases
        into.doubts += report.doubts
        return
    data = _parsed(content, path)
    matches, reader = READERS[form]
    if not matches(data):
        raise EvidenceError(f"{path}: not a result of {form}")
    before = len(into.cases)
    reader(data, path, into)
    if len(into.cases) == before:
        raise EvidenceError(f"{path}: a result of {form} with nothing in it")


def _parsed(content: bytes, path: Path) -> dict[str, Any]:
    """A JSON object; ``NaN`` and infinities, which some tools write, count as not known."""
    try:
        data = json.loads(content.decode("utf-8-sig"), parse_constant=lambda _: None)
    except (ValueError, RecursionError) as error:
        raise EvidenceError(f"{path}: neither XML nor JSON: {error}") from error
    if not isinstance(data, dict):
        raise EvidenceError(f"{path}: a JSON object is expected, found {type(data).__name__}")
    return data


def ingest_into(run: RunDir, scope: str, paths: Sequence[Path], form: str, facts: Mapping[str, str]) -> Foreign:
    """Make a scope of a run folder out of foreign files; ``facts`` are what a person states about the machine."""
    files = []
    for path in paths:
        if not path.exists():
            raise UsageError(f"there is nothing at {path}", "give files that another tool wrote")
        files.append((path, read_limited(path, SIZE_LIMIT)))
    names = [f"{number:03d}-{_NOT_PLAIN.sub('_', path.name)[-80:]}" for number, path in enumerate(paths, 1)]
    found = ingest_files(files, form)
    lines = encode_lines(to_lines(found))
    environment = {"device_key": "unknown", "git.commit": "unknown", "git.reason": "the tool did not record it"}
    if found.facts.get("git.commit", "unknown") != "unknown":
        del environment["git.reason"]
    environment |= {**found.facts, **facts, "ingest.tool": found.tool}
    if facts:
        environment["ingest.stated"] = ", ".join(sorted(facts))
    folder, attempt = run.begin_attempt(scope)
    with writing(folder / "source"):
        (folder / "source").mkdir()
    for name, (_, content) in zip(names, files, strict=True):
        write_new(folder / "source" / name, content)
    write_new(folder / "records.jsonl", lines)
    write_new(folder / "environment.json", json_bytes(dict(sorted(environment.items()))))
    record = {
        "schema": SCHEMA,
        "scope": scope,
        "state": "finished",
        "origin": {"kind": "fresh", "detail": ""},
        "argv": [],
        "exit_code": None,
        "seconds": None,
        "problem": "",
        "attempt": attempt,
        "started": utc_now(),
        "ingested": {
            "version": INGEST,
            "tool": found.tool,
            "files": dict(zip(names, (str(path) for path in paths), strict=True)),
            "doubts": found.doubts,
        },
    }
    write_atomic(folder / "scope.json", json_bytes(record))
    return found


def check_ingested(folder: Path, ingested: Mapping[str, Any]) -> list[str]:
    """Ingest the kept sources again and hold the records against it; gives what there is to doubt."""
    notes = [f"ingested from {ingested['tool']}: machine and source are what the files tell", *ingested["doubts"]]
    if ingested["version"] != INGEST:
        return [*notes, f"ingested by rules {ingested['version']}, this harness has {INGEST}: not read again"]
    kept = folder / "source"
    present = {path.name for path in kept.iterdir()} if kept.is_dir() else set()
    if present != set(ingested["files"]):
        raise EvidenceError(f"{kept}: its files are not those that scope.json lists")
    files = [(Path(original), (kept / name).read_bytes()) for name, original in sorted(ingested["files"].items())]
    again = encode_lines(to_lines(ingest_files(files, ingested["tool"])))
    if again != (folder / "records.jsonl").read_bytes():
        raise EvidenceError(f"{folder}: records.jsonl does not follow from the files in source/")
    return notes
