"""``python -m engine route`` and ``routes``: what a person types, and what a wrong word gets."""

from __future__ import annotations

import subprocess
import sys

import pytest

from engine.cli import main
from engine.errors import InputError
from engine.routes_cli import build_request
from engine.routing import DEFAULT_OVERRIDES, NO_WINDOW, Overrides, Phase, Workspace
from engine.routing.wording import policy_markdown


def test_explain_prints_route_plan_and_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["route", "--explain", "phase=decode", "kv_dtype=fp8_e4m3", "kv_len=1025", "page_size=1568"])
    printed = capsys.readouterr().out
    assert code == 0
    assert "route      decode_xqa (L5)" in printed
    assert "64 tokens (aligned page, E4M3): 17 actual, 17 launched" in printed
    assert "1025 tokens decide (longest sequence)" in printed
    assert "phase.many_rows" in printed


def test_without_explain_one_word(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["route", "phase=prefill", "q_len=4096", "kv_len=8192"]) == 0
    assert capsys.readouterr().out == "prefill_gather_exact\n"


def test_a_refusal_ends_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["route", "head_dim=80"]) == 1
    assert "layer.head_dim: saw D 80; allowed: 64, 128, 256" in capsys.readouterr().out


@pytest.mark.parametrize(
    "pair", ["foo=1", "head_dim", "head_dim=big", "phase=dream", "window=1", "alibi=perhaps", "out_of_memory=all"]
)
def test_a_wrong_word_ends_with_2_and_says_what_is_allowed(pair: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["route", pair])
    assert ended.value.code == 2
    assert pair.partition("=")[0] in capsys.readouterr().err


def test_a_request_that_contradicts_itself_ends_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["route", "q_heads=7", "kv_heads=2"])
    assert ended.value.code == 2
    assert "whole group" in capsys.readouterr().err


def test_the_environment_counts(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("VLLM_FLASH_V100_DECODE_USE_XQA", "0")
    assert main(["route", "kv_len=4096"]) == 0
    assert capsys.readouterr().out == "decode_scalar\n"


def test_routes_prints_the_policy(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["routes", "--table"]) == 0
    assert capsys.readouterr().out == "\n".join(policy_markdown()) + "\n"


def test_axes_of_every_kind() -> None:
    words = "phase=verify q_len=5 window=2047,-1 capability=7.5 out_of_memory=gather,bridge scale=0.5 static_hint=100"
    request = build_request([*words.split(), "xqa=0", "decode_xqa=false"], DEFAULT_OVERRIDES)
    assert request.phase is Phase.VERIFY
    assert (request.q_len, request.kv_len, request.prefix) == (5, 4096, True)
    assert request.window == (2047, -1) != NO_WINDOW
    assert request.capability == (7, 5)
    assert request.out_of_memory == (Workspace.GATHER, Workspace.BRIDGE)
    assert not request.native.xqa
    assert not request.overrides.decode_xqa
    assert (request.scale, request.static_hint) == (0.5, 100)


def test_the_alias_is_resolved_for_the_card_that_is_asked_about() -> None:
    assert build_request(["kv_asked=fp8"], DEFAULT_OVERRIDES).kv_dtype == "fp8_e5m2"
    assert build_request(["kv_asked=fp8", "capability=7.5"], DEFAULT_OVERRIDES).kv_dtype == "fp8"
    assert build_request(["kv_asked=fp8"], Overrides(backend=False)).kv_dtype == "fp8"


def test_a_bad_override_names_its_values() -> None:
    with pytest.raises(InputError, match="64, 128, 256, 512, 1024"):
        build_request(["partition_size=96"], DEFAULT_OVERRIDES)


def test_asking_about_the_policy_imports_no_torch() -> None:
    program = (
        "import sys\n"
        "from engine.cli import main\n"
        "assert main(['route', 'kv_len=4096']) == 0\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
