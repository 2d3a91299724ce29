"""From drawn replies to conversations: what is kept, editing tasks made of it, and the file they are stored in."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from engine.training import prompts

# Editing tasks for each hundred kept replies.
_EDITS_PER_100 = 20
_SENTENCE_END = re.compile(r"(?<=[.!?]) ")


@dataclass(frozen=True, slots=True)
class Conversation:
    """One question and its answer."""

    question: str
    answer: str


def is_sound(answer: str) -> bool:
    """Whether an answer is worth learning: some words, Latin script, no sentence or phrase said again and again."""
    words = answer.split()
    if len(words) < 5 or "\ufffd" in answer or sum(character > "\u024f" for character in answer) > len(answer) // 20:
        return False
    sentences = [sentence.strip() for sentence in re.split(r"[.!?\n]+", answer) if len(sentence.split()) > 3]
    if sentences and max(Counter(sentences).values()) > 2:
        return False
    phrases = Counter(zip(words, words[1:], words[2:], words[3:], strict=False))
    return not phrases or max(phrases.values()) <= max(3, len(words) // 20)


def decoded(drawn: Sequence[tuple[str, list[int]]], token_bytes: Sequence[bytes]) -> list[Conversation]:
    """The sound ones of drawn replies (question, token ids), each text once; worked out in a few processes."""
    parts = [drawn[at : at + _CHUNK] for at in range(0, len(drawn), _CHUNK)]
    # Forked, so that the table and the imports are there; nothing in a child touches a device.
    with ProcessPoolExecutor(
        min(_WORKERS, len(os.sched_getaffinity(0))), get_context("fork"), _take_table, (token_bytes,)
    ) as pool:
        found = [one for part in pool.map(_sound, parts) for one in part]
    return list(dict.fromkeys(found))


_CHUNK, _WORKERS = 4000, 8
_TABLE: list[bytes] = []  # of a worker process


def _take_table(token_bytes: Sequence[bytes]) -> None:
    _TABLE[:] = token_bytes


def _sound(drawn: Sequence[tuple[str, list[int]]]) -> list[Conversation]:
    answers = [(question, b"".join(map(_TABLE.__getitem__, ids)).decode(errors="replace")) for question, ids in drawn]
    return [Conversation(question, answer.strip()) for question, answer in answers if is_sound(answer.strip())]


def with_edits(conversations: Sequence[Conversation], seed: int) -> list[Conversation]:
    """The conversations, and editing tasks over sentences of their answers."""
    draw = random.Random(seed)
    edits = []
    for conversation in draw.sample(conversations, len(conversations) * _EDITS_PER_100 // 100):
        sentences = [part for part in _SENTENCE_END.split(conversation.answer.replace("\n", " ")) if part.strip()]
        if sentences:
            first = draw.randrange(len(sentences))
            edits.append(Conversation(*prompts.edit(sentences[first : first + draw.randint(1, 3)], draw)))
    everything = [*conversations, *edits]
    draw.shuffle(everything)
    return everything


def write(conversations: Iterable[Conversation], path: Path) -> None:
    """One JSON list per line, compressed."""
    with gzip.open(path, "wt", compresslevel=1, encoding="utf-8") as file:
        for conversation in conversations:
            file.write(json.dumps([conversation.question, conversation.answer], ensure_ascii=False) + "\n")


def read(path: Path) -> list[Conversation]:
    """What `write` wrote."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [Conversation(*json.loads(line)) for line in file]


def read_lines(path: Path) -> list[Conversation]:
    """The same out of a file that is not compressed."""
    return [Conversation(*json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
