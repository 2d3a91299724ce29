"""A bundle's verdict as an in-toto test-result statement, and its DSSE signature, made by securesystemslib.

The statement names the bundle by its digest, so that whoever trusts the signer need not trust the courier. It stands
beside the bundle, never in it. Signing needs the optional package ``securesystemslib`` with ``cryptography``.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from harness.bundles.bundle import Bundle
from harness.errors import EvidenceError, UsageError
from harness.files import json_bytes, read_limited
from harness.model import CaseStatus
from harness.verdict import CaseOutcome, CaseRow, ExitCode

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://in-toto.io/attestation/test-result/v0.1"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
SIZE_LIMIT = 64 << 20
_RESULTS = {ExitCode.OK: "PASSED", ExitCode.REGRESSION: "FAILED", ExitCode.EVIDENCE_BROKEN: "FAILED"}


def statement(bundle: Bundle) -> dict[str, Any]:
    """The in-toto statement that a bundle amounts to; the same bundle gives the same statement."""
    if bundle.notes:
        raise EvidenceError(
            f"{bundle.about.name} cannot be attested: {bundle.notes[0]}",
            "judge it anew: harness compare baselines BUNDLE",
        )
    passed, warned, failed = _sorted_out(bundle.verdict.comparison.cases)
    return {
        "_type": STATEMENT,
        "subject": [{"name": bundle.about.name, "digest": {"sha256": bundle.bag.digest}}],
        "predicateType": PREDICATE,
        "predicate": {
            "result": _RESULTS.get(bundle.verdict.decision.code, "WARNED"),
            "configuration": list(_configuration(bundle)),
            "passedTests": passed,
            "warnedTests": warned,
            "failedTests": failed,
        },
    }


def _sorted_out(rows: Iterable[CaseRow]) -> tuple[list[str], list[str], list[str]]:
    """Only a pass passes; what was held back, skipped or never asked for is warned of; the rest failed."""
    passed: list[str] = []
    warned: list[str] = []
    failed: list[str] = []
    for row in rows:
        held = row.outcome in (CaseOutcome.QUARANTINED, CaseOutcome.SKIPPED) or row.head is CaseStatus.XFAILED
        green = row.head is not None and row.head.green
        (passed if green else warned if held and row.outcome is not CaseOutcome.BROKEN else failed).append(row.node)
    return passed, warned, failed


def _configuration(bundle: Bundle) -> Iterable[dict[str, Any]]:
    """What the results depend on, each by digest: source, native library, what was compared with, the scopes' files."""
    evidence = bundle.evidence
    if evidence.commit not in ("", "unknown"):
        source = {"name": "source", "digest": {"gitCommit": evidence.commit}}
        yield source | ({"annotations": {"dirty_digest": evidence.dirty_digest}} if evidence.dirty_digest else {})
    if evidence.native_sha256:
        yield {"name": "libsm70.so", "digest": {"sha256": evidence.native_sha256}}
    if bundle.base is not None and bundle.base.digest:
        yield {"name": bundle.base.label, "digest": {"sha256": bundle.base.digest}}
    for path, member in sorted(bundle.bag.members.items()):
        if path.startswith("data/scopes/") and path.endswith(("/records.jsonl", "/junit.xml")):
            yield {"name": path, "digest": {"sha256": member.sha256}}


# ---- signing --------------------------------------------------------------------------------------------------------


def sign(content: dict[str, Any], key: Path) -> bytes:
    """A DSSE envelope around a statement, signed with an unencrypted PEM key (Ed25519, ECDSA or RSA)."""
    dsse, signer_module, serialization = _libraries()
    private = _loaded(serialization.load_pem_private_key, key, "private", password=None)
    try:
        signer = signer_module.CryptoSigner(private)
    except (ValueError, TypeError) as error:
        raise UsageError(f"{key}: this kind of key does not sign: {error}") from error
    envelope = dsse.Envelope(json_bytes(content), PAYLOAD_TYPE, {})
    envelope.sign(signer)
    return json_bytes(envelope.to_dict())


def check(path: Path, bundle: Bundle, key: Path | None) -> str:
    """Hold an attestation against a bundle and, if it is signed, its signer's public key; gives what was shown."""
    document = _json(path)
    signed = "payloadType" in document or "signatures" in document
    if signed and key is None:
        raise UsageError(f"{path} is signed; its signature says something only with --key PUBLIC.pem")
    if key is not None and not signed:
        raise EvidenceError(f"{path} is not signed", "ask for a signed one, or check it without --key")
    content = _opened(document, path, key) if key is not None else document
    expected = statement(bundle)
    if content.get("subject") != expected["subject"]:
        raise EvidenceError(f"{path} is about another bundle: {json.dumps(content.get('subject'))[:200]}")
    if content != expected:
        raise EvidenceError(f"{path} does not say what the bundle shows")
    return "signed by that key, and says what the bundle shows" if signed else "says what the bundle shows (not signed)"


def _opened(document: dict[str, Any], path: Path, key: Path) -> dict[str, Any]:
    dsse, signer_module, serialization = _libraries()
    exceptions: Any = importlib.import_module("securesystemslib.exceptions")
    public = signer_module.SSlibKey.from_crypto(_loaded(serialization.load_pem_public_key, key, "public"))
    try:
        envelope = dsse.Envelope.from_dict(document)
        envelope.verify([public], 1)
    except (exceptions.Error, KeyError, TypeError, ValueError, AttributeError) as error:
        raise EvidenceError(f"{path}: the signature does not hold under {key.name}: {error}") from error
    if envelope.payload_type != PAYLOAD_TYPE:
        raise EvidenceError(f"{path}: signs a payload of type {envelope.payload_type!r}, not {PAYLOAD_TYPE}")
    return _object(envelope.payload, path)


def _libraries() -> tuple[Any, Any, Any]:
    try:
        return (
            importlib.import_module("securesystemslib.dsse"),
            importlib.import_module("securesystemslib.signer"),
            importlib.import_module("cryptography.hazmat.primitives.serialization"),
        )
    except ImportError as error:
        raise UsageError(
            f"signatures need a package that is not installed ({error.name})", "pip install 'securesystemslib[crypto]'"
        ) from error


def _loaded(load: Any, path: Path, kind: str, **keywords: Any) -> Any:
    exceptions: Any = importlib.import_module("cryptography.exceptions")
    try:
        return load(read_limited(path, SIZE_LIMIT), **keywords)
    except (ValueError, TypeError, exceptions.UnsupportedAlgorithm) as error:
        raise UsageError(
            f"{path}: no {kind} key in PEM that could be read: {error}",
            "make a pair with openssl; `python -m harness attest --help` shows how",
        ) from error


def _json(path: Path) -> dict[str, Any]:
    return _object(read_limited(path, SIZE_LIMIT), path)


def _object(content: bytes, path: Path) -> dict[str, Any]:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise EvidenceError(f"{path}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise EvidenceError(f"{path}: a JSON object is expected")
    return value
