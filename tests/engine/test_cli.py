"""The command line as a person meets it: its own process, its exit code, one clear line."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.cli import main

ENGINE = [sys.executable, "-m", "engine"]
ROOT = Path(__file__).resolve().parents[2]


Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """The command line within this process: exit code, standard output, standard error."""

    def run_here(*arguments: str) -> tuple[int, str, str]:
        try:
            code = main(arguments)
        except SystemExit as leaving:
            code = int(leaving.code or 0)
        return code, *capsys.readouterr()

    return run_here


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*ENGINE, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--top-p", "0", "x"], "top-p is 0.0; allowed: above 0 (1e-30 at least), up to 1.0 (off)"),
        (["--top-p", "1.5", "x"], "top-p is 1.5; allowed: above 0 (1e-30 at least), up to 1.0 (off)"),
        (["--top-k", "-3", "x"], "top-k is -3; allowed: 0 (off) or a whole number of candidates, 1 or more"),
        (["--top-k", "few", "x"], "argument --top-k: invalid int value: 'few'; see python -m engine --help"),
        (["--temperature", "-1", "x"], "temperature is -1.0; allowed: 0 (greedy) or a finite number above 0"),
        (["--max-tokens", "0", "x"], "max-tokens is 0; allowed: 1 or more"),
        (["--surprise", "x"], "unrecognized arguments: --surprise; see python -m engine --help"),
        (["--draft", "magic", "x"], "argument --draft: invalid choice: 'magic' (choose from none, lookup, dflash2,"),
        (["--draft", "dflash2", "x"], "draft is 'dflash2' with draft-model None; give its folder with draft-model"),
        (["--draft-model", "d", "x"], "draft is 'none' with draft-model d; leave draft-model out"),
        (["--logit-bias", "7", "x"], "logit-bias is '7'; allowed: ID:X, as in 42:-5.5"),
        (["--ban-ids", "7;8", "x"], "ban-ids is '7;8'; allowed: whole numbers with commas between them"),
        (["--min-p", "2", "x"], "min-p is 2.0; allowed: 0 (off) to 1"),
        (["--logit-bias", "7:1", "--logit-bias", "7:2", "x"], "logit-bias names token 7 twice; allowed: once each"),
        (["--logprobs", "2", "x"], "logprobs is 2 without json, which alone shows them; add --json"),
        (
            ["--fusion-tail", "2", "--draft", "lookup", "x"],
            "fusion-tail is given with draft lookup; allowed: with draft",
        ),
        (["--temperature", "1e39", "x"], "temperature is 1e+39; allowed: 0 (greedy) or a finite number above 0, up to"),
        (["--top-k", "9" * 30, "x"], "allowed: 0 (off) or a whole number of candidates, 1 or more, up to 2147483647"),
        (["--top-p", "1e-320", "x"], "allowed: above 0 (1e-30 at least), up to 1.0 (off)"),
        (["--repetition-penalty", "1e-320", "x"], "allowed: above 0 (1 is off), 0.001 to 1000"),
        (["--logprobs", "-1", "x"], "logprobs is -1; allowed: 0 (of the token alone) or more"),
        (["--draft", "lookup", "--draft-tokens", "99", "x"], "draft-tokens is 99; allowed: 1 to 31"),
        (["--draft-tokens", "3", "x"], "draft-tokens is 3 with draft none; allowed: with a drafter"),
        (["--threads", "0", "x"], "threads is 0; allowed: 1 to 256"),
        (["--port", "29500", "x"], "port is given with tp 1; allowed: with --tp 2 or more"),
        (["--pad-heads", "x"], "pad-heads is given with tp 1; allowed: with --tp 2 or more"),
        (["--greedy", "--temperature", "1", "x"], "argument --temperature: not allowed with argument --greedy"),
        ([], "the following arguments are required: prompt; see python -m engine --help"),
        (["--model", "/no/such.gguf", "x"], "/no/such.gguf: no such file; give a .gguf file"),
    ],
)
def test_bad_input_is_one_clear_line_and_exit_2(call: Call, arguments: list[str], message: str) -> None:
    code, out, err = call(*arguments)
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert message.replace("'", "") in line.replace("'", "")  # Python 3.11 quotes the choices
    assert line.startswith("error: ")


def test_a_foreign_model_file_is_refused(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"\x80\x02pickle")
    code, out, err = call("--model", str(path), "x")
    assert (code, out) == (2, "")
    assert "a GGUF file starts with b'GGUF'; this is another format" in err


def test_the_environment_is_a_default_that_options_override(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SM70_MODEL", "/from/the/environment.gguf")
    assert "/from/the/environment.gguf: no such file" in call("x")[2]
    assert "/from/the/option.gguf: no such file" in call("--model", "/from/the/option.gguf", "x")[2]
    monkeypatch.setenv("SM70_THREADS", "all")
    assert "SM70_THREADS is 'all'" in call("x")[2]


def test_the_exit_code_is_the_processs() -> None:
    done = run("--top-p", "1.5", "x")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: top-p is 1.5; allowed: above 0 (1e-30 at least), up to 1.0 (off)\n"


def test_help_shows_examples_without_loading_a_model() -> None:
    done = run("--help", SM70_MODEL="/no/such.gguf")
    assert done.returncode == 0
    assert 'python -m engine "Why is the sky blue?"' in done.stdout
    assert "exit codes: 0" in done.stdout


def test_import_is_light() -> None:
    code = "import engine, sys; print(sorted(m for m in sys.modules if m in ('torch', 'numpy', 'gguf')))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.usefixtures("model_path")
def test_a_prompt_longer_than_the_context_is_refused(call: Call) -> None:
    code, _, err = call("--max-model-len", "64", "word " * 100)
    assert code == 2
    (line,) = err.splitlines()
    assert "tokens; allowed: up to 63, the context of 64 less one token to emit" in line


@pytest.mark.usefixtures("model_path")
@pytest.mark.parametrize(
    ("prompt", "stdin", "message"),
    [
        ("-", b"\xff\xfe", "standard input is not UTF-8 text"),
        ("caf\udce9", b"", "the prompt is no Unicode text"),
    ],
)
def test_bytes_that_are_no_text_are_refused(
    call: Call, monkeypatch: pytest.MonkeyPatch, prompt: str, stdin: bytes, message: str
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
    code, out, err = call(prompt)
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert message in line


@pytest.mark.usefixtures("model_path")
def test_a_reader_that_leaves_is_no_error() -> None:
    done = subprocess.run(
        f"{sys.executable} -m engine --max-tokens 40 --raw Once | head -c 1",
        shell=True,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert (len(done.stdout), done.stderr) == (1, "")


@pytest.mark.usefixtures("model_path")
@pytest.mark.parametrize(
    "arguments", [["--max-tokens", "2", "Once"], ["--max-tokens", "2", "--json", "Once"], ["routes", "--table"]]
)
def test_a_full_disk_is_one_line_and_exit_1(arguments: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*ENGINE, *arguments], cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr == (
        "error: the output cannot be written: No space left on device; make room or write elsewhere\n"
    )


def test_a_closed_standard_input_is_refused(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    code, _, err = call("-")
    assert code == 2
    assert err == "error: standard input is closed; give the prompt as an argument, or open it\n"


@pytest.mark.usefixtures("model_path")
def test_the_reply_streams_and_ends_with_the_figures() -> None:
    done = run("--max-tokens", "8", "Why is the sky blue?")
    assert done.returncode == 0
    assert done.stderr == ""
    *text, figures = done.stdout.splitlines()
    assert "".join(text).startswith("The answer to this question")
    assert figures.startswith("8 tokens · 7 rounds · 1.00 emitted/round · ")
    assert figures.endswith(" · length")


@pytest.mark.usefixtures("model_path")
def test_json_is_one_record_with_the_whole_hash(call: Call) -> None:
    code, out, err = call("--json", "--max-tokens", "4", "--temperature", "1", "--top-k", "5", "--seed", "3", "Hi")
    assert (code, err) == (0, "")
    record = json.loads(out)
    assert len(record["tokens_sha256"]) == 64
    assert (record["seed"], record["finish_reason"], len(record["token_ids"])) == (3, "length", 4)
    assert len(record["round_times_ms"]) == record["rounds"]


@pytest.mark.usefixtures("model_path")
def test_ctrl_c_ends_with_130_and_the_figures_so_far() -> None:
    process = subprocess.Popen(
        [*ENGINE, "--max-tokens", "4000", "--temperature", "1", "--seed", "1", "--raw", "Once"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        bufsize=1,
    )
    assert process.stdout is not None
    first = process.stdout.read(1)  # the first piece of text: generation is under way
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate()
    assert first
    assert process.returncode == 130
    assert errors == ""
    assert rest.splitlines()[-1].endswith(" · aborted")


@pytest.mark.parametrize("module", ["engine.config", "engine.cli_options"])
def test_an_interrupt_while_modules_load_leaves_no_traceback(module: str) -> None:
    script = f"""
import runpy, sys
class CtrlC:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, CtrlC())
sys.argv = ["engine", "Hi"]
runpy.run_module("engine", run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "\ninterrupted\n")


@pytest.mark.usefixtures("model_path")
def test_resident_memory_stays_below_a_gibibyte() -> None:
    code = (
        "import resource, sys; from engine.cli import main;"
        "main(['--draft', 'lookup', '--max-tokens', '32', '--raw', 'word ' * 600]);"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(done.stderr) < 1024 * 1024  # KiB
