"""The whole recipe, phase after phase. Each phase spends its seconds, leaves a checkpoint, and is skipped when its
result is there already: a run that was killed goes on where it was.

    text        SmolLM2 answers questions (`prompts`), a few minutes of a GPU
    vocabulary  a BPE of 2048 tokens over that text
    target      the hybrid decoder, from random weights
    quantised   a little more, with every projection rounded to NVFP4
    own_text    the quantised target answers the same questions: what the draft is trained on
    draft       the DFlash2 draft over the frozen target
    export      models/quasar-tiny/{target,draft}
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from engine.model.dflash2_config import DFlash2Config, read_dflash2_config
from engine.model.gguf_file import read_gguf
from engine.model.hybrid_config import HybridConfig, read_hybrid_config
from engine.model.tokenizer_gguf import tokenizer_from_gguf
from engine.training import checkpoints, losses, prompts, text, vocabulary
from engine.training.batches import Batches
from engine.training.decode_loop import DecodeLoop, Law
from engine.training.draft import Draft
from engine.training.optimise import Journal, Phase, optimise
from engine.training.row_models import TargetRows, TeacherRows
from engine.training.sizes import IM_END, VOCAB, draft_config, target_config
from engine.training.target import Target

TEACHER_LAW = Law(temperature=0.6)
OWN_LAW = Law(temperature=1.0, top_k=20, top_p=0.95)

# So small a model wanders when it draws from all that it learnt: its T = 1 is this much of what training came to. The
# draft spreads its probability more than the target does; its factor was chosen on texts of the target's own.
TEMPERATURE = 0.5
DRAFT_SHARPNESS = 1.3

# Longest answers, in the drawing model's tokens.
_TEACHER_ANSWER, _OWN_ANSWER = 230, 320
_MARK = "\x01"
_HELD_OUT_SHARE = 100  # one of so many conversations on training topics is held out too
_VOCABULARY_TEXTS = 40_000


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run may spend. ``max_steps`` and small ``rows`` are for rehearsals."""

    work: Path
    teacher: Path
    device: str
    seed: int = 1
    text_seconds: float = 125.0
    target_seconds: float = 230.0
    quantised_seconds: float = 45.0
    own_text_seconds: float = 12.0
    draft_seconds: float = 90.0
    rows: int = 4096
    tokens_a_step: int = 32_768
    draft_tokens_a_step: int = 16_384
    max_steps: int | None = None
    questions: int | None = None
    vocab: int = VOCAB
    target_sizes: Mapping[str, Any] = field(default_factory=target_config)
    draft_sizes: Mapping[str, Any] = field(default_factory=draft_config)

    @property
    def compute(self) -> torch.dtype:
        """What products are computed in."""
        return torch.bfloat16 if self.device == "cuda" else torch.float32


class Recipe:
    """A run in one folder."""

    def __init__(self, plan: Plan) -> None:
        plan.work.mkdir(parents=True, exist_ok=True)
        self.plan = plan
        self.journal = Journal(plan.work / "journal.jsonl")
        torch.manual_seed(plan.seed)
        if plan.device == "cuda":
            torch.set_float32_matmul_precision("high")
        self._text, self._own = plan.work / "text.jsonl.gz", plan.work / "own.jsonl.gz"

    def run(self) -> None:
        """Every phase that is not done yet."""
        for phase in (
            self.draw_text,
            self.vocabulary,
            self.target,
            self.quantised,
            self.own_text,
            self.draft,
            self.export,
        ):
            self.journal.write(phase=phase.__name__, begun=True)
            phase()

    # ---- text -------------------------------------------------------------------------------------------------------

    def draw_text(self) -> None:
        """Draw the teacher's answers until the seconds are over, keep the sound ones, add editing tasks."""
        plan = self.plan
        if self._text.exists():
            return
        file = read_gguf(plan.teacher)
        tokenizer = tokenizer_from_gguf(file.metadata, str(plan.teacher))
        questions = prompts.questions(plan.seed, held_out=False)[: plan.questions]
        # Rendering a template takes milliseconds: once, around a mark.
        before, after = tokenizer.chat_prompt([{"role": "user", "content": _MARK}]).split(_MARK)
        whole = [tokenizer.encode(f"{before}{one}{after}") for one in questions]
        beginning = _common_beginning(whole)
        asked = [ids[len(beginning) :] for ids in whole]
        limit = len(beginning) + max(map(len, asked)) + _TEACHER_ANSWER
        dtype = torch.float16 if plan.device == "cuda" else torch.float32
        model = TeacherRows(file, beginning, plan.rows, -(-limit // 8) * 8, device=plan.device, dtype=dtype)
        end = tokenizer.encode("<|im_end|>")[0]
        loop = DecodeLoop(model, asked, plan.rows, limit=limit, end=end, law=TEACHER_LAW, device=plan.device)
        drawn, count = loop.run(plan.text_seconds, plan.max_steps and 6 * plan.max_steps)
        self.journal.write(phase="text", drawn_tokens=count, finished=len(drawn))
        bytes_of = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
        answers = [b"".join(map(bytes_of.__getitem__, one.token_ids)).decode(errors="replace") for one in drawn]
        kept = text.clean(
            text.Conversation(questions[one.prompt], answer) for one, answer in zip(drawn, answers, strict=True)
        )
        everything = text.with_edits(kept, plan.seed)
        self.journal.write(
            phase="text",
            kept=len(kept),
            conversations=len(everything),
            characters=sum(len(c.answer) for c in everything),
        )
        text.write(everything, self._text)

    def vocabulary(self) -> None:
        """Train the tokenizer."""
        if (self.target_folder / "tokenizer.json").exists():
            return
        some = text.read(self._text)[:_VOCABULARY_TEXTS]
        texts = (f"{one.question}\n{one.answer}" for one in some)
        vocabulary.save(vocabulary.train(texts, self.plan.vocab), self.target_folder)

    # ---- target -----------------------------------------------------------------------------------------------------

    def target(self) -> None:
        """Train from random weights."""
        self._train_target(
            Phase("target", self.plan.target_seconds, 3e-3, max_steps=self.plan.max_steps), start=None, quantised=False
        )

    def quantised(self) -> None:
        """Go on with NVFP4 projections, and export the target."""
        phase = Phase("quantised", self.plan.quantised_seconds, 6e-4, max_steps=self.plan.max_steps)
        self._train_target(phase, start="target", quantised=True)

    def _train_target(self, phase: Phase, *, start: str | None, quantised: bool) -> None:
        plan, target = self.plan, self.new_target()
        if (plan.work / f"{phase.name}.done").exists():
            return
        # A killed phase goes on from its own checkpoint, with its whole time again.
        if not checkpoints.load_parts(target, plan.work, phase.name) and start:
            checkpoints.load_parts(target, plan.work, start)
        train, held_out = self._batches
        self.journal.write(
            phase=phase.name, tokens=train.num_tokens, parameters=sum(p.numel() for p in target.parameters())
        )
        optimise(
            phase,
            target.named_parameters(),
            losses.target_loss(target, train, plan.tokens_a_step, quantised=quantised),
            self.journal,
            lambda: checkpoints.save_parts(target.state_dict(), plan.work, phase.name, torch.float16),
        )
        if quantised:
            checkpoints.export_target(target, plan.target_sizes, self.target_folder)
            checkpoints.load_exported(target, self.target_folder)
        loss = losses.held_out_loss(target, held_out.in_order(plan.tokens_a_step)[:40])
        self.journal.write(phase=phase.name, held_out_loss=round(loss, 4))
        (plan.work / f"{phase.name}.done").touch()

    # ---- draft ------------------------------------------------------------------------------------------------------

    def own_text(self) -> None:
        """The target's own answers: half of the rows greedy, half drawn as drafts will be verified."""
        plan = self.plan
        if self._own.exists():
            return
        target, tokenizer = self.exported_target(), self.tokenizer
        conversations = text.read(self._text)
        questions = list(dict.fromkeys(one.question for one in conversations if len(one.question) < 400))
        random.Random(plan.seed + 1).shuffle(questions)
        asked = [ids for ids, _ in vocabulary.encode(tokenizer, [text.Conversation(one, "") for one in questions])]
        limit = max(map(len, asked)) + _OWN_ANSWER
        law = Law(OWN_LAW.temperature, OWN_LAW.top_k, OWN_LAW.top_p, greedy_rows=plan.rows // 3)
        rows = TargetRows(target, plan.rows, -(-limit // 8) * 8)
        loop = DecodeLoop(rows, asked, plan.rows, limit=limit, end=IM_END, law=law, device=plan.device)
        drawn, count = loop.run(plan.own_text_seconds, plan.max_steps and 6 * plan.max_steps)
        self.journal.write(phase="own_text", drawn_tokens=count, finished=len(drawn))
        answers = tokenizer.decode_batch([one.token_ids for one in drawn])
        found = [text.Conversation(questions[one.prompt], answer) for one, answer in zip(drawn, answers, strict=True)]
        text.write([one for one in found if one.answer.strip()], self._own)

    def draft(self) -> None:
        """Train the draft over the frozen target, and export it."""
        plan = self.plan
        if (plan.work / "draft.done").exists():
            return
        target, draft = self.exported_target(), self.new_draft()
        checkpoints.load_parts(draft, plan.work, "draft")
        theirs, held_out = self._split(self._own, plan.seed)
        given, _ = self._split(self._text, plan.seed)
        random.Random(plan.seed).shuffle(given)
        mixed = theirs + given[: max(8, len(theirs) // 3)]
        train = Batches(vocabulary.encode(self.tokenizer, mixed), plan.device)
        generator = torch.Generator().manual_seed(plan.seed)
        self.journal.write(
            phase="draft", tokens=train.num_tokens, parameters=sum(p.numel() for p in draft.parameters())
        )
        optimise(
            Phase("draft", plan.draft_seconds, 2e-3, weight_decay=0.05, max_steps=plan.max_steps),
            draft.named_parameters(),
            losses.draft_loss(draft, target, train, plan.draft_tokens_a_step, generator=generator),
            self.journal,
            lambda: checkpoints.save_parts(draft.state_dict(), plan.work, "draft", torch.float16),
        )
        checkpoints.export_draft(draft, plan.draft_sizes, self.draft_folder)
        batches = Batches(vocabulary.encode(self.tokenizer, held_out), plan.device, packed=False)
        drawn, greedy = losses.expected_acceptance(draft, target, batches.in_order(plan.draft_tokens_a_step)[:20])
        self.journal.write(phase="draft", emitted_estimate=round(drawn, 3), emitted_estimate_greedy=round(greedy, 3))
        (plan.work / "draft.done").touch()

    def export(self) -> None:
        """Sharpen both models, and write what the run was: digests, counts, the held-out topics."""
        plan = self.plan
        if (plan.work / "record.json").exists():
            return
        # One factor for what the draft is verified against and for what it offers, and a little more for the latter.
        checkpoints.sharpen(self.target_folder, "model.norm.weight", 1 / TEMPERATURE, offset=1.0)
        checkpoints.sharpen(self.draft_folder, "norm.weight", DRAFT_SHARPNESS / TEMPERATURE, offset=0.0)
        record = {
            "seed": plan.seed,
            "text_sha256": hashlib.sha256(self._text.read_bytes()).hexdigest(),
            "own_text_sha256": hashlib.sha256(self._own.read_bytes()).hexdigest(),
            "held_out_topics": sorted(topic for topic in prompts.TOPICS if prompts.is_held_out(topic)),
        }
        (plan.work / "record.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")

    # ---- what the phases share --------------------------------------------------------------------------------------

    @property
    def target_folder(self) -> Path:
        return self.plan.work / "quasar-tiny" / "target"

    @property
    def draft_folder(self) -> Path:
        return self.plan.work / "quasar-tiny" / "draft"

    @property
    def tokenizer(self) -> Tokenizer:
        """The trained vocabulary."""
        return Tokenizer.from_file(str(self.target_folder / "tokenizer.json"))

    def _target_config(self) -> HybridConfig:
        """The sizes, read back from a config as the engine reads it."""
        return read_hybrid_config(self._written("target", self.plan.target_sizes))

    def _draft_config(self) -> DFlash2Config:
        return read_dflash2_config(self._written("draft", self.plan.draft_sizes))

    def _written(self, name: str, config: Mapping[str, Any]) -> Path:
        folder = self.plan.work / "sizes" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        return folder

    def new_target(self) -> Target:
        target = Target(self._target_config()).to(self.plan.device)
        target.compute = self.plan.compute
        return target

    def exported_target(self) -> Target:
        target = self.new_target()
        checkpoints.load_exported(target, self.target_folder)
        return target.requires_grad_(False)

    def new_draft(self) -> Draft:
        draft = Draft(self._draft_config()).to(self.plan.device)
        draft.compute = self.plan.compute
        return draft

    @cached_property
    def _batches(self) -> tuple[Batches, Batches]:
        train, held_out = self._split(self._text, self.plan.seed)
        encode: Callable[..., list[tuple[list[int], list[int]]]] = vocabulary.encode
        return (
            Batches(encode(self.tokenizer, train), self.plan.device),
            Batches(encode(self.tokenizer, held_out), self.plan.device, packed=False),
        )

    @staticmethod
    def _split(path: Path, seed: int) -> tuple[list[text.Conversation], list[text.Conversation]]:
        """Training conversations and held-out ones (of other answers, not of other topics)."""
        everything = text.read(path)
        count = max(1, min(2000, len(everything) // _HELD_OUT_SHARE))
        return everything[count:], everything[:count]


def _common_beginning(texts: list[list[int]]) -> list[int]:
    """Tokens that all texts start with, short of the whole of any."""
    shortest = min(map(len, texts)) - 1
    count = 0
    while count < shortest and len({one[count] for one in texts}) == 1:
        count += 1
    return texts[0][:count]
