"""Commands that take evidence from and give it to others: export, import, attest, ingest; and ``audit``."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from harness.commands.options import add_baselines, add_out, add_output, add_run_dir
from harness.errors import UsageError
from harness.rundir import SCOPE_NAME, new_run_id, open_run
from harness.typed import typed
from harness.verdict import ExitCode

Show = Callable[[str], None]
FORMS = ("auto", "junit", "vllm-latency", "vllm-serve", "pytest-benchmark", "google-benchmark", "nvbench", "hyperfine")


def add_commands(add_parser: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the commands of this module."""
    _export(add_parser)
    _attest(add_parser)
    _ingest(add_parser)
    _audit(add_parser)


def _export(add_parser: Callable[..., argparse.ArgumentParser]) -> None:
    export = add_parser(
        "export",
        help="a bundle as one zip file",
        description="Pack a bundle into a zip; the same bundle gives the same bytes.",
        epilog="example:\n  harness export artifacts/bundles/NAME -o NAME.zip\n",
    )
    export.add_argument("bundle", type=Path, metavar="BUNDLE", help="a sealed bundle")
    export.add_argument("-o", "--output", type=Path, required=True, metavar="FILE.zip", help="the zip to write")
    unpack = add_parser(
        "import",
        help="a bundle out of a zip file",
        description="Unpack a zip that `harness export` made, without trusting it, and check the bundle in it.",
        epilog="example:\n  harness import NAME.zip --out artifacts/bundles\n",
    )
    unpack.add_argument("zip", type=Path, metavar="FILE.zip", help="what `harness export` wrote")
    add_out(unpack)


def _attest(add_parser: Callable[..., argparse.ArgumentParser]) -> None:
    attest = add_parser(
        "attest",
        help="an in-toto statement about a bundle, signed or checked",
        description="State a bundle's verdict as an in-toto test result, sign it (DSSE), or check such a statement.",
        epilog="""\
examples:
  harness attest BUNDLE -o statement.json                      unsigned
  harness attest BUNDLE --key key.pem -o statement.dsse.json   signed with an Ed25519, ECDSA or RSA key
  harness attest BUNDLE --check statement.dsse.json --key public.pem
a pair of keys: openssl genpkey -algorithm ed25519 -out key.pem; openssl pkey -in key.pem -pubout -out public.pem
""",
    )
    attest.add_argument("bundle", type=Path, metavar="BUNDLE", help="a sealed bundle")
    attest.add_argument("--key", type=Path, metavar="PEM", help="private to sign, public to check")
    attest.add_argument("--check", type=Path, metavar="FILE", help="hold this statement against the bundle")
    add_output(attest)


def _ingest(add_parser: Callable[..., argparse.ArgumentParser]) -> None:
    ingest = add_parser(
        "ingest",
        help="other tools' results as a scope of a run",
        description="Read JUnit XML of any dialect or benchmark JSON into a run folder, which can then be sealed.",
        epilog="""\
examples:
  harness ingest build/test-results/*.xml --scope unit
  harness ingest run1/serve.json run2/serve.json --scope serving --run-dir R    two files of one name: two repeats
  harness seal R --against OTHER --assume-comparable     the files do not tell the machine: your word for it
  harness ingest bench.json --scope micro --device-key sm70-v100sxm2-32g-x1 --fact 'cpu.model=Xeon 6148'
""",
    )
    ingest.add_argument(
        "files",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="results that name no case are called like their file: give both sides of a comparison the same name",
    )
    ingest.add_argument("--scope", required=True, metavar="SCOPE", help="the name of the scope they become")
    ingest.add_argument("--form", choices=FORMS, default="auto", help="which tool wrote them (default: %(default)s)")
    add_run_dir(ingest)
    ingest.add_argument("--device-key", metavar="KEY", help="the device they were measured on, if you know it")
    ingest.add_argument(
        "--fact", action="append", default=[], metavar="KEY=VALUE", help="another fact you know about the machine"
    )


def _audit(add_parser: Callable[..., argparse.ArgumentParser]) -> None:
    audit = add_parser(
        "audit",
        help="which baselines are wrong or stale",
        description="Check every baseline against the ledger, against recent bundles, and the quarantine's dates.",
        epilog="""\
examples:
  harness audit
  harness audit artifacts/bundles/LAST     also: what that bundle has that no baseline gates
exit codes: 0 nothing wrong, 1 something is wrong (stale alone is not)
""",
    )
    audit.add_argument("bundles", type=Path, nargs="*", metavar="BUNDLE", help="recent sealed bundles to check against")
    add_baselines(audit)


def export_command(options: argparse.Namespace, show: Show) -> int:
    """``harness export``."""
    from harness.bundles.zipped import write_zip
    from harness.files import sha256_file

    write_zip(options.bundle, options.output)
    show(f"{options.output}\nsha256  {sha256_file(options.output)}")
    return ExitCode.OK


def import_command(options: argparse.Namespace, show: Show) -> int:
    """``harness import``."""
    from harness.bundles.bundle import open_bundle
    from harness.bundles.zipped import read_zip

    place = read_zip(options.zip, options.out)
    bundle = open_bundle(place)
    show(f"{place}\ndigest  {bundle.bag.digest}")
    return ExitCode.OK


def attest_command(options: argparse.Namespace, show: Show) -> int:
    """``harness attest``."""
    from harness.bundles.attest import check, sign, statement
    from harness.bundles.bundle import open_bundle
    from harness.files import json_bytes, outside_bundles, write_atomic

    bundle = open_bundle(options.bundle)
    if options.check is not None:
        show(f"{options.check}: {check(options.check, bundle, options.key)}")
        return ExitCode.OK
    content = statement(bundle)
    written = json_bytes(content) if options.key is None else sign(content, options.key)
    if options.output is None:
        show(written.decode().rstrip())
    else:
        write_atomic(outside_bundles(options.output), written)
    return ExitCode.OK


def ingest_command(options: argparse.Namespace, show: Show, say: Show) -> int:
    """``harness ingest``."""
    from harness.ingest import ingest_into

    if not SCOPE_NAME.fullmatch(options.scope):
        raise UsageError(f"{options.scope!r} is no scope name", "use lower-case letters, digits and underscores")
    facts = dict(_fact(text) for text in options.fact)
    if options.device_key:
        facts["device_key"] = options.device_key
    run_dir = options.run_dir or Path("artifacts/runs") / new_run_id()
    with open_run(run_dir) as run:
        found = ingest_into(run, options.scope, options.files, options.form, facts)
    say(f"{options.scope}: {len({case.node for case in found.cases})} cases of {found.tool}")
    for doubt in found.doubts:
        say(f"  doubt: {doubt}")
    if "device_key" not in facts:
        say("  the files do not say on which device: --device-key KEY does; else judge with --assume-comparable")
    show(str(run_dir))
    say(f"seal it with: {typed('seal', str(run_dir))}")
    return ExitCode.OK


def _fact(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip() or not value.strip():
        raise UsageError(f"--fact {text!r}: give KEY=VALUE, as in 'cpu.model=Xeon 6148'")
    return key.strip(), value.strip()


def audit_command(options: argparse.Namespace, show: Show) -> int:
    """``harness audit``."""
    from harness.audit import Weight, audit
    from harness.bundles.bundle import open_bundle
    from harness.quarantine import read_quarantine

    if not options.baselines.is_dir():
        raise UsageError(f"there is no baselines folder {options.baselines}")
    heads = [open_bundle(path).evidence for path in options.bundles]
    quarantine = read_quarantine(options.baselines / "quarantine.toml")
    findings = audit(options.baselines, quarantine, heads, datetime.now(UTC).date())
    for finding in findings:
        show(f"{finding.weight:<6} {finding.what}: {finding.detail}")
    if not findings:
        show(f"{options.baselines} holds no baseline")
    return ExitCode.REGRESSION if any(finding.weight is Weight.WRONG for finding in findings) else ExitCode.OK
