"""The whole recipe, phase after phase. Each phase spends its seconds, leaves a checkpoint, and is skipped when its
result is there already: a run that was killed goes on where it was.

    text        SmolLM2 answers questions (`prompts`), a few minutes of a GPU; some of them are held-out topics'
    vocabulary  a BPE of 2048 tokens over that text
    target      the hybrid decoder, from random weights
    quantised   a little more, with every projection rounded to NVFP4
    sharpen     one factor on the target's logits, where its law leaves more open than `LARGEST_ENTROPY`
    own_text    the quantised target answers the same questions: what the draft is trained on
    draft       the DFlash2 draft over the frozen target, on the target's own text and a little of the teacher's
    export      the prompts that acceptance is measured on, and what the run was
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Mapping, Sequence
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
from engine.training.plan import Plan
from engine.training.row_models import TargetRows, TeacherRows
from engine.training.sizes import IM_END
from engine.training.target import Target

# Little chance in the teacher's text: what is learnt is then worth drawing from at T = 1.
TEACHER_LAW = Law(temperature=0.3)
OWN_LAW = Law(temperature=1.0, top_k=20, top_p=0.95)

# The most that the stored target's law of use may leave open, nats per token on held-out answers: what a law of more
# leaves open is sharpened until it does not. No acceptance is looked at for it.
LARGEST_ENTROPY = 0.5
_TEMPERATURES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)

# Longest answers, in the drawing model's tokens.
_TEACHER_ANSWER, _OWN_ANSWER = 170, 260
_LONGEST_QUESTION = 400  # characters
_MARK = "\x01"
_ENTROPY_TEXTS = 400
_VOCABULARY_TEXTS = 40_000
_HELD_OUT_QUESTIONS = 1500
# Held-out conversations that are kept beside the model, for `measure`.
_HELD_OUT_KEPT = 48


class Recipe:
    """A run in one folder."""

    def __init__(self, plan: Plan) -> None:
        plan.work.mkdir(parents=True, exist_ok=True)
        self.plan = plan
        self.journal = Journal(plan.work / "journal.jsonl")
        torch.manual_seed(plan.seed)
        if plan.device == "cuda":
            torch.set_float32_matmul_precision("high")
        self._text, self._held_out = plan.work / "text.jsonl.gz", plan.work / "held_out.jsonl.gz"
        self._own, self._own_held_out = plan.work / "own.jsonl.gz", plan.work / "own_held_out.jsonl.gz"
        self._graphs = plan.device == "cuda" and not plan.eager

    def run(self) -> None:
        """Every phase that is not done yet."""
        for phase in (
            self.draw_text,
            self.vocabulary,
            self.target,
            self.quantised,
            self.sharpen,
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
        asked_for = self._asked_for()
        questions = [*asked_for[prompts.Topics.DEV], *asked_for[prompts.Topics.TRAIN]]
        # Rendering a template takes milliseconds: once, around a mark.
        before, after = tokenizer.chat_prompt([{"role": "user", "content": _MARK}]).split(_MARK)
        whole = [tokenizer.encode(f"{before}{one}{after}") for one in questions]
        prefix = _common_prefix(whole)
        asked = [ids[len(prefix) :] for ids in whole]
        limit = len(prefix) + max(map(len, asked)) + _TEACHER_ANSWER
        dtype = torch.float16 if plan.device == "cuda" else torch.float32
        model = TeacherRows(file, prefix, plan.rows, -(-limit // 8) * 8, device=plan.device, dtype=dtype)
        end = tokenizer.encode("<|im_end|>")[0]
        loop = DecodeLoop(model, asked, plan.rows, limit=limit, end=end, law=TEACHER_LAW, device=plan.device)
        drawn, count = loop.run(plan.text_seconds, plan.max_steps and 6 * plan.max_steps)
        self.journal.write(phase="text", drawn_tokens=count, finished=len(drawn))
        kept = text.decoded(
            [(questions[one.prompt], one.token_ids) for one in drawn],
            [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)],
        )
        for path, which in ((self._held_out, prompts.Topics.DEV), (self._text, prompts.Topics.TRAIN)):
            theirs = set(asked_for[which])
            own = text.with_edits([one for one in kept if one.question in theirs], plan.seed)
            self.journal.write(
                phase="text", topics=which.value, conversations=len(own), characters=sum(len(one.answer) for one in own)
            )
            text.write(own, path)

    @cached_property
    def _conversations(self) -> list[text.Conversation]:
        """The training text."""
        return text.read(self._text)

    def _asked_for(self) -> dict[prompts.Topics, list[str]]:
        """The questions of the two sets that text is drawn for."""
        limits = {prompts.Topics.DEV: _HELD_OUT_QUESTIONS, prompts.Topics.TRAIN: None}
        return {
            which: prompts.questions(self.plan.seed, which, partners=prompts.PARTNERS)[:limit][: self.plan.questions]
            for which, limit in limits.items()
        }

    def vocabulary(self) -> None:
        """Train the tokenizer."""
        if (self.target_folder / "tokenizer.json").exists():
            return
        kept = [[one.question, one.answer] for one in text.read(self._held_out)[:_HELD_OUT_KEPT]]
        self.target_folder.mkdir(parents=True, exist_ok=True)
        (self.model_folder / "held_out_text.jsonl").write_text(
            "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in kept), encoding="utf-8"
        )
        some = self._conversations[:_VOCABULARY_TEXTS]
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
            lambda: train.draw(plan.tokens_a_step).inputs,
            losses.target_loss(target, quantised=quantised),
            self.journal,
            lambda: checkpoints.save_parts(target.state_dict(), plan.work, phase.name, torch.float16),
            graphs=self._graphs,
        )
        if quantised:
            checkpoints.export_target(target, plan.target_sizes, self.target_folder)
            checkpoints.load_exported(target, self.target_folder)
        loss = losses.held_out_loss(target, held_out.in_order(plan.tokens_a_step)[:40])
        beside = self._beside_the_model()
        self.journal.write(
            phase=phase.name,
            held_out_loss=round(loss, 4),
            held_out_text_loss=round(losses.held_out_loss(target, beside.in_order(plan.tokens_a_step)), 4),
            held_out_text_tokens=beside.num_tokens,
        )
        (plan.work / f"{phase.name}.done").touch()

    # ---- draft ------------------------------------------------------------------------------------------------------

    def sharpen(self) -> None:
        """Divide the target's logits by the highest temperature that leaves no more open than `LARGEST_ENTROPY`."""
        done = self.plan.work / "sharpen.done"
        if done.exists():
            return
        target = self.exported_target()
        conversations = text.read(self._held_out)[:_ENTROPY_TEXTS]
        batches = Batches(vocabulary.encode(self.tokenizer, conversations), self.plan.device, packed=False)
        entropies = {
            temperature: losses.cut_entropy(target, batches.in_order(self.plan.tokens_a_step), 1 / temperature)
            for temperature in _TEMPERATURES
        }
        chosen = next((t for t, entropy in entropies.items() if entropy <= LARGEST_ENTROPY), _TEMPERATURES[-1])
        beside = self._beside_the_model().in_order(self.plan.tokens_a_step)
        exact = self.new_target()
        checkpoints.load_parts(exact, self.plan.work, "target")
        for phase, one in (("target", exact), ("quantised", target)):
            loss = losses.held_out_loss(one, beside, 1 / chosen)
            self.journal.write(phase=phase, held_out_text_loss_sharpened=round(loss, 4))
        if chosen != 1.0:
            checkpoints.sharpen(self.target_folder, "model.norm.weight", 1 / chosen, offset=1.0)
        self.journal.write(
            phase="sharpen", entropies={str(t): round(e, 4) for t, e in entropies.items()}, chosen=chosen
        )
        done.touch()

    def own_text(self) -> None:
        """The target's own answers: a third of the rows greedy, the others drawn as drafts will be verified."""
        plan = self.plan
        if self._own.exists():
            return
        target, tokenizer = self.exported_target(), self.tokenizer
        held_out = _short_questions(text.read(self._held_out))[:_HELD_OUT_QUESTIONS]
        questions = _short_questions(self._conversations)
        random.Random(plan.seed + 1).shuffle(questions)
        questions = [*held_out, *questions]
        asked = [ids for ids, _ in vocabulary.encode(tokenizer, [text.Conversation(one, "") for one in questions])]
        limit = max(map(len, asked)) + _OWN_ANSWER
        law = Law(OWN_LAW.temperature, OWN_LAW.top_k, OWN_LAW.top_p, greedy_rows=plan.rows // 3)
        rows = TargetRows(target, plan.rows, -(-limit // 8) * 8)
        loop = DecodeLoop(rows, asked, plan.rows, limit=limit, end=IM_END, law=law, device=plan.device)
        drawn, count = loop.run(plan.own_text_seconds, plan.max_steps and 6 * plan.max_steps)
        self.journal.write(phase="own_text", drawn_tokens=count, finished=len(drawn))
        answers = tokenizer.decode_batch([one.token_ids for one in drawn])
        found = [text.Conversation(questions[one.prompt], answer) for one, answer in zip(drawn, answers, strict=True)]
        found = [one for one in found if one.answer.strip()]
        aside = set(held_out)
        text.write([one for one in found if one.question in aside], self._own_held_out)
        text.write([one for one in found if one.question not in aside], self._own)

    def draft(self) -> None:
        """Train the draft over the frozen target, and export it."""
        plan = self.plan
        if (plan.work / "draft.done").exists():
            return
        target, draft = self.exported_target(), self.new_draft()
        checkpoints.load_parts(draft, plan.work, "draft")
        theirs = text.read(self._own)
        some = random.Random(plan.seed).sample(self._conversations, min(len(self._conversations), 8 + len(theirs) // 8))
        train = Batches(vocabulary.encode(self.tokenizer, theirs + some), plan.device)
        generator = torch.Generator().manual_seed(plan.seed)
        block = draft.config.block_size
        self.journal.write(
            phase="draft", tokens=train.num_tokens, parameters=sum(p.numel() for p in draft.parameters())
        )

        def draw() -> tuple[torch.Tensor, ...]:
            first = torch.randint(1, block + 1, (), generator=generator)
            return (*train.draw(plan.draft_tokens_a_step).inputs, first.to(plan.device))

        optimise(
            Phase("draft", plan.draft_seconds, 2e-3, weight_decay=0.05, max_steps=plan.max_steps),
            draft.named_parameters(),
            draw,
            losses.draft_loss(draft, target),
            self.journal,
            lambda: checkpoints.save_parts(draft.state_dict(), plan.work, "draft", torch.float16),
            graphs=self._graphs,
        )
        checkpoints.export_draft(draft, plan.draft_sizes, self.draft_folder)
        checkpoints.load_exported_draft(draft, self.draft_folder)
        held_out = Batches(vocabulary.encode(self.tokenizer, text.read(self._own_held_out)), plan.device, packed=False)
        drawn, greedy = losses.expected_acceptance(draft, target, held_out.in_order(plan.draft_tokens_a_step)[:20])
        self.journal.write(phase="draft", emitted_estimate=round(drawn, 3), emitted_estimate_greedy=round(greedy, 3))
        (plan.work / "draft.done").touch()

    def export(self) -> None:
        """Write what acceptance is measured on, and what the run was: digests, the held-out topics."""
        plan = self.plan
        if (plan.work / "record.json").exists():
            return
        for which, name in prompts.FILES.items():
            (self.model_folder / name).write_text(prompts.as_json(which), encoding="utf-8")
        record = {
            "seed": plan.seed,
            "text_sha256": hashlib.sha256(self._text.read_bytes()).hexdigest(),
            "own_text_sha256": hashlib.sha256(self._own.read_bytes()).hexdigest(),
            "held_out_topics": {which.value: which.names for which in prompts.FILES},
        }
        (plan.work / "record.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")

    # ---- what the phases share --------------------------------------------------------------------------------------

    @property
    def model_folder(self) -> Path:
        """What becomes models/quasar-tiny."""
        return self.plan.work / "quasar-tiny"

    @property
    def target_folder(self) -> Path:
        return self.model_folder / "target"

    @property
    def draft_folder(self) -> Path:
        return self.model_folder / "draft"

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

    def _beside_the_model(self) -> Batches:
        """The held-out conversations that are kept with the model."""
        kept = text.read_lines(self.model_folder / "held_out_text.jsonl")
        return Batches(vocabulary.encode(self.tokenizer, kept), self.plan.device, packed=False)

    @cached_property
    def _batches(self) -> tuple[Batches, Batches]:
        encode: Callable[..., list[tuple[list[int], list[int]]]] = vocabulary.encode
        return (
            Batches(encode(self.tokenizer, self._conversations), self.plan.device),
            Batches(encode(self.tokenizer, text.read(self._held_out)), self.plan.device, packed=False),
        )


def _short_questions(conversations: Sequence[text.Conversation]) -> list[str]:
    """Each question once, in their order, but for the longest editing tasks."""
    return list(dict.fromkeys(one.question for one in conversations if len(one.question) < _LONGEST_QUESTION))


def _common_prefix(texts: list[list[int]]) -> list[int]:
    """Tokens that all texts start with, short of the whole of any."""
    shortest = min(map(len, texts)) - 1
    count = 0
    while count < shortest and len({one[count] for one in texts}) == 1:
        count += 1
    return texts[0][:count]
