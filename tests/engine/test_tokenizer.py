from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import InputError, ModelFileError
from engine.model.gguf_file import GgufFile
from engine.model.tokenizer import ChatTokenizer, TextStream
from engine.model.tokenizer_gguf import tokenizer_from_gguf

# Without the few control characters and the unassigned planes whose bytes the vocabulary lacks.
TEXT = st.text(
    st.characters(max_codepoint=0x3FFFF, exclude_categories=["Cs"], exclude_characters="\x04\x06\x13\x14\x16\x1d")
)


@given(text=TEXT)
def test_text_survives_the_round_trip(tokenizer: ChatTokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_bytes_without_a_token_are_left_out(tokenizer: ChatTokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode("a\x04b")) == "ab"


@given(text=TEXT, cuts=st.lists(st.integers(0, 40)))
def test_streaming_never_shows_half_a_character(tokenizer: ChatTokenizer, text: str, cuts: list[int]) -> None:
    token_ids = tokenizer.encode(text)
    stream, shown = TextStream(tokenizer), ""
    edges = [0, *sorted(cut for cut in cuts if cut <= len(token_ids)), len(token_ids)]
    for start, end in itertools.pairwise(edges):
        shown += stream.push(token_ids[start:end])
        assert text.startswith(shown)
    assert shown + stream.finish() == text


def test_an_unfinished_character_ends_as_one_replacement(tokenizer: ChatTokenizer) -> None:
    smile = tokenizer.encode("😀")
    assert len(smile) > 1
    stream = TextStream(tokenizer)
    assert stream.push(smile[:-1]) == ""
    assert stream.finish() == "�"


def test_known_token_ids(tokenizer: ChatTokenizer) -> None:
    # The ids that transformers' own tokenizer gives for this model and text.
    assert tokenizer.encode("Why is the sky blue?") == [4898, 314, 260, 6376, 4461, 47]
    assert [tokenizer.token_bytes(token_id) for token_id in tokenizer.encode("x 12345")] == [
        b"x", b" ", b"1", b"2", b"3", b"4", b"5",
    ]  # fmt: skip


def test_chat_template(tokenizer: ChatTokenizer) -> None:
    prompt = tokenizer.chat_prompt([{"role": "user", "content": "Hi {{ 1 + 1 }}"}])
    assert prompt == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi {{ 1 + 1 }}<|im_end|>\n<|im_start|>assistant\n"
    )
    own_system = tokenizer.chat_prompt([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}])
    assert own_system.startswith("<|im_start|>system\nBe brief.<|im_end|>\n")
    token_ids = tokenizer.encode(prompt)
    assert token_ids[0] == 1
    assert token_ids.count(2) == 2
    assert tokenizer.eos_token_ids == {0, 2}


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{{ messages.__class__.__mro__[1].__subclasses__() }}", "unsafe"),
        ("{% for i in range(10000000000) %}{{ i }}{% endfor %}", "Range too big"),
        ("{{ 1 // 0 }}", "division"),
        ("{{ messages + 1 }}", "concatenate"),
    ],
)
def test_a_template_that_reaches_out_or_breaks_is_stopped(model_file: GgufFile, template: str, why: str) -> None:
    hostile = tokenizer_from_gguf({**model_file.metadata, "tokenizer.chat_template": template}, "hostile.gguf")
    with pytest.raises(ModelFileError, match=rf"hostile.gguf: the chat template failed: .*{why}"):
        hostile.chat_prompt([{"role": "user", "content": "Hi"}])


def test_a_model_without_a_template_says_so(model_file: GgufFile) -> None:
    metadata = {key: value for key, value in model_file.metadata.items() if key != "tokenizer.chat_template"}
    with pytest.raises(ModelFileError, match="no chat template"):
        tokenizer_from_gguf(metadata, "x.gguf").chat_prompt([{"role": "user", "content": "Hi"}])


@pytest.mark.parametrize("key", ["tokenizer.ggml.pre", "tokenizer.ggml.tokens", "tokenizer.ggml.eos_token_id"])
def test_missing_or_wrong_metadata_is_named(model_file: GgufFile, key: str) -> None:
    with pytest.raises(ModelFileError, match=key):
        tokenizer_from_gguf({name: value for name, value in model_file.metadata.items() if name != key}, "x.gguf")
    with pytest.raises(ModelFileError, match=key):
        tokenizer_from_gguf({**model_file.metadata, key: 1.5}, "x.gguf")


def test_an_unknown_pre_tokenizer_is_refused(model_file: GgufFile) -> None:
    with pytest.raises(ModelFileError, match=r"pre-tokenizer 'llama-bpe'; allowed: .*smollm"):
        tokenizer_from_gguf({**model_file.metadata, "tokenizer.ggml.pre": "llama-bpe"}, "x.gguf")


def test_an_unknown_id_is_refused(tokenizer: ChatTokenizer) -> None:
    with pytest.raises(InputError, match="token id 49152; allowed: 0 to 49151"):
        tokenizer.decode([49152])
