"""What a person may name on a command line as evidence: a bundle, a zip of one, a baselines folder, a run, a file."""

from __future__ import annotations

from pathlib import Path

from harness.baseline import as_evidence, load_baseline, load_file
from harness.bundles.bundle import read_evidence
from harness.collect import collect
from harness.errors import UsageError
from harness.model import Evidence

FORMS = "a sealed bundle, a run folder, a baselines folder, or a baseline's .json"


def open_evidence(path: Path, device_key: str = "") -> Evidence:
    """Read whatever lies at ``path``; ``device_key`` picks the baselines of a device out of a baselines folder."""
    if not path.exists():
        raise UsageError(f"there is nothing at {path}", f"give {FORMS}")
    if path.is_file() and path.suffix == ".json":
        baseline = load_file(path)
        return as_evidence(str(path), baseline.device_key, [(path, baseline)])
    if path.is_dir():
        if (path / "bagit.txt").exists() or path.name.endswith(".unfinished"):
            return read_evidence(path)
        if (path / "run.json").exists():
            return collect(path, f"{path.name} (not sealed)", [])
        if any(path.glob("*/*.json")):
            return _of_device(path, device_key)
        if any(path.glob("*.json")):
            return load_baseline(path.parent, path.name)
    raise UsageError(f"{path} is neither a bundle nor a run nor a baseline", f"give {FORMS}")


def _of_device(folder: Path, device_key: str) -> Evidence:
    keys = sorted(path.name for path in folder.iterdir() if path.is_dir() and any(path.glob("*.json")))
    if not device_key and len(keys) > 1:
        raise UsageError(f"{folder} holds baselines of {', '.join(keys)}", f"name one: {folder}/{keys[0]}")
    return load_baseline(folder, device_key or keys[0])
