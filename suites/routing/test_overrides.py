"""The environment of the policy: read once, in one place, and never guessed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields

import pytest

from engine.errors import InputError
from engine.routing import DEFAULT_OVERRIDES, Overrides, decide, overrides_record, read_overrides
from engine.routing.overrides import VARIABLES, Variable
from suites.routing.axes import call

pytestmark = pytest.mark.group("routing: overrides")

FLAGS = [variable for variable in VARIABLES if isinstance(getattr(DEFAULT_OVERRIDES, variable.field), bool)]
NUMBERS = [variable for variable in VARIABLES if variable not in FLAGS]


def _id(variable: Variable) -> str:
    return variable.field


class CountingEnvironment(Mapping[str, str]):
    """An environment that knows how often each variable was looked at."""

    def __init__(self, values: dict[str, str]) -> None:
        self.values_by_name = values
        self.reads: list[str] = []

    def __getitem__(self, name: str) -> str:
        self.reads.append(name)
        return self.values_by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_by_name)

    def __len__(self) -> int:
        return len(self.values_by_name)


def test_every_field_has_one_variable() -> None:
    assert [variable.field for variable in VARIABLES] == [item.name for item in fields(Overrides)]
    assert len({variable.name for variable in VARIABLES}) == len(VARIABLES)


def test_an_empty_environment_is_the_published_default() -> None:
    assert read_overrides({}) == DEFAULT_OVERRIDES
    assert overrides_record(DEFAULT_OVERRIDES) == {}


@pytest.mark.parametrize("variable", FLAGS, ids=_id)
def test_flag(variable: Variable) -> None:
    for text, value in {"0": False, "1": True, "false": False, "TRUE": True}.items():
        assert getattr(read_overrides({variable.name: text}), variable.field) is value


@pytest.mark.parametrize("variable", VARIABLES, ids=_id)
def test_invalid_values_raise(variable: Variable) -> None:
    """The message names the variable, what it held and what it may hold."""
    for text in ("", "maybe", "2.5", "-1", "0x10", "yes"):
        with pytest.raises(InputError) as raised:
            read_overrides({variable.name: text})
        message = str(raised.value)
        assert variable.name in message
        assert repr(text) in message
        assert variable.allowed in message


@pytest.mark.parametrize("variable", NUMBERS, ids=_id)
def test_zero_is_no_length(variable: Variable) -> None:
    with pytest.raises(InputError):
        read_overrides({variable.name: "0"})


@pytest.mark.parametrize("size", [64, 128, 256, 512, 1024])
def test_partition_size(size: int) -> None:
    assert read_overrides({"VLLM_FLASH_V100_DECODE_PARTITION_SIZE": str(size)}).partition_size == size


@pytest.mark.parametrize("size", [1, 32, 63, 65, 255, 257, 896, 2048])
def test_other_partition_sizes_raise(size: int) -> None:
    with pytest.raises(InputError, match="64, 128, 256, 512, 1024"):
        read_overrides({"VLLM_FLASH_V100_DECODE_PARTITION_SIZE": str(size)})


@pytest.mark.parametrize("size", [64, 128, 2048])
def test_mtp5_partition_sizes_are_fewer(size: int) -> None:
    with pytest.raises(InputError, match="256, 512, 1024"):
        read_overrides({"VLLM_FLASH_V100_XQA_MTP5_PARTITION_SIZE": str(size)})


def test_each_variable_is_looked_at_once() -> None:
    environment = CountingEnvironment({variable.name: "1" for variable in FLAGS})
    read_overrides(environment)
    assert sorted(environment.reads) == sorted(variable.name for variable in VARIABLES)


def test_what_differs_is_recorded_by_name() -> None:
    overrides = read_overrides({"VLLM_FLASH_V100_DECODE_USE_XQA": "0", "VLLM_FLASH_V100_PREFILL_GATHER_DENSE": "1"})
    assert overrides_record(overrides) == {"VLLM_FLASH_V100_DECODE_USE_XQA": False}


def test_a_decision_does_not_look_at_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Setting a variable after start changes nothing: what counts travels in the request."""
    request = call("decode", 1, 4096)
    before = decide(request)
    for variable in FLAGS:
        monkeypatch.setenv(variable.name, "0")
    assert decide(request) == before


def test_the_policy_needs_neither_torch_nor_an_environment() -> None:
    """In a fresh interpreter: decide with ``os.environ`` made unreadable, then look for torch."""
    program = (
        "import os, sys\n"
        "from engine.routing import RouteRequest, decide\n"
        "class Shut(dict):\n"
        "    def __getitem__(self, name): raise AssertionError('read ' + name)\n"
        "    get = __contains__ = __getitem__\n"
        "os.environ = Shut()\n"
        "assert decide(RouteRequest()).route == 'decode_xqa'\n"
        "assert 'torch' not in sys.modules, 'the policy imports torch'\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
