"""What quasar-tiny is like, in figures: losses by precision, KV conversion, acceptance with its control."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as functional_torch
from tokenizers import Tokenizer

from engine.config import EngineConfig
from engine.llm import LLM
from engine.model.bundled import quasar_tiny_draft_path, quasar_tiny_path
from engine.model.hybrid_config import read_hybrid_config
from engine.ops import functional
from engine.request import SamplingParams
from engine.training import checkpoints, prompts, text, vocabulary
from engine.training.acceptance import Acceptance
from engine.training.batches import NO_LABEL, Batch, Batches
from engine.training.target import AttentionMixer, Layer, Target

FP8 = {"E4M3": torch.float8_e4m3fn, "E5M2": torch.float8_e5m2}
SAMPLED = SamplingParams(temperature=1.0, top_k=20, top_p=0.95, seed=7)

Codec = Callable[[torch.Tensor], torch.Tensor]


def held_out_batches(target: Path) -> list[Batch]:
    """The held-out conversations that lie beside the model."""
    conversations = text.read_lines(target.parent / "held_out_text.jsonl")
    tokenizer = Tokenizer.from_file(str(target / "tokenizer.json"))
    return Batches(vocabulary.encode(tokenizer, conversations), "cpu", packed=False).in_order(4096)


def stored_target(folder: Path) -> Target:
    """The target with the numbers that its checkpoint stands for, float32."""
    target = Target(read_hybrid_config(folder))
    checkpoints.load_exported(target, folder)
    return target.requires_grad_(False)


def codec(dtype: torch.dtype) -> Codec:
    """There and back through the engine's FP8 codec, scale 1."""

    def convert(x: torch.Tensor) -> torch.Tensor:
        return functional.fp8_decode(functional.fp8_encode(x.contiguous(), dtype))

    return convert


def losses_by_precision(target: Target, batches: list[Batch]) -> dict[str, tuple[float, float]]:
    """Nats per token as stored, and as trained (see `trained_temperature`); by what keys and values are kept as."""
    found = {}
    for name, convert in {"float32": None, **{name: codec(dtype) for name, dtype in FP8.items()}}.items():
        for mixer in attention_mixers(target):
            mixer.kept_as = convert
        found[name] = _nats(target, batches)
    for mixer in attention_mixers(target):
        mixer.kept_as = None
    return found


def _nats(target: Target, batches: list[Batch]) -> tuple[float, float]:
    """Cross entropy of the stored logits and of those as trained, nats per token."""
    sums, count = torch.zeros(2), 0
    trained = trained_temperature(quasar_tiny_path().parent / "journal.jsonl")
    for batch in batches:
        logits, _ = target(batch.token_ids)
        wanted = batch.labels != NO_LABEL
        for index, scale in enumerate((1.0, trained)):
            sums[index] += functional_torch.cross_entropy(scale * logits[wanted], batch.labels[wanted], reduction="sum")
        count += int(wanted.sum())
    return float(sums[0]) / count, float(sums[1]) / count


def trained_temperature(journal: Path) -> float:
    """What T = 1 of a stored target is a temperature of, as its run's journal says: the factor of phase ``sharpen``."""
    entries = map(json.loads, journal.read_text(encoding="utf-8").splitlines())
    return float(next(entry["chosen"] for entry in entries if "chosen" in entry))


def kv_errors(target: Target, batches: list[Batch]) -> dict[str, dict[str, float]]:
    """The largest relative L2 error of a head's keys or values, text by text, and the largest magnitude."""
    worst: dict[str, dict[str, float]] = {"K": {"largest": 0.0}, "V": {"largest": 0.0}}
    seen: list[torch.Tensor] = []

    def note(x: torch.Tensor) -> torch.Tensor:
        seen.append(x)
        return x

    for mixer in attention_mixers(target):
        mixer.kept_as = note
    for batch in batches:
        target(batch.token_ids)
    for mixer in attention_mixers(target):
        mixer.kept_as = None
    for index, rows in enumerate(seen):  # keys, values, keys, values, …
        into = worst["KV"[index % 2]]
        into["largest"] = max(into["largest"], float(rows.abs().max()))
        for name, dtype in FP8.items():
            error = (codec(dtype)(rows) - rows).norm(dim=(1, 3)) / rows.norm(dim=(1, 3))  # text, head
            into[name] = max(into.get(name, 0.0), float(error.max()))
    return worst


def acceptance(
    draft: Path, params: SamplingParams, prompts: Sequence[str], *, target: Path | None = None, **settings: Any
) -> Acceptance:
    """Rounds of the engine with ``draft`` over chat prompts, all in one batch; ``target``: not the carried one."""
    llm = LLM(
        EngineConfig(
            model=target or quasar_tiny_path(),
            draft="dflash2",
            draft_model=draft,
            max_model_len=640,
            max_sequences=len(prompts),
            **settings,
        )
    )
    results = llm.generate_batch([llm.chat_prompt(prompt) for prompt in prompts], params)
    if refused := [result.error for result in results if result.error is not None]:
        raise RuntimeError(f"{len(refused)} of {len(results)} replies failed, the first: {refused[0]}")
    return Acceptance(
        tokens_of=tuple(len(result.token_ids) - 1 for result in results),
        rounds_of=tuple(result.rounds for result in results),
        stopped_of=tuple(result.finish_reason == "stop" for result in results),
    )


def shifted_taps(folder: Path, draft: Path | None = None) -> Path:
    """A copy of a draft (the carried one) whose taps are one layer off: the defect that acceptance must show."""
    draft = draft or quasar_tiny_draft_path()
    config = json.loads((draft / "config.json").read_text(encoding="utf-8"))
    config["dflash_config"]["target_layer_ids"] = [tap + 1 for tap in config["dflash_config"]["target_layer_ids"]]
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "model.safetensors").symlink_to((draft / "model.safetensors").resolve())
    return folder


def held_out_prompts() -> list[str]:
    """The prompts that choices were made on: questions about held-out topics, and editing tasks."""
    file = quasar_tiny_path().parent / prompts.FILES[prompts.Topics.DEV]
    found = json.loads(file.read_text(encoding="utf-8"))
    return [*found["questions"], *found["edits"]]


def attention_mixers(target: Target) -> list[AttentionMixer]:
    """The layers that have keys and values."""
    mixers = (layer.mixer for layer in target.layers if isinstance(layer, Layer))
    return [mixer for mixer in mixers if isinstance(mixer, AttentionMixer)]


def acceptance_table(
    which: prompts.Topics, *, max_tokens: int, threads: int | None, model: Path | None = None
) -> Iterator[str]:
    """Emitted per round of the carried pair, or of ``model``/target and ``model``/draft, and with shifted taps."""
    model = model or quasar_tiny_path().parent
    kinds = prompts.prompt_set(which)
    asked = len(kinds.questions)
    settings: dict[str, Any] = {} if threads is None else {"threads": threads}
    parts = {"all": slice(None), "questions": slice(asked), "editing tasks": slice(asked, None)}
    yield from ("", "| draft | sampling | prompts | emitted a round | 95 % | tokens | rounds | ended |")
    yield "|---|---|---|" + "--:|" * 5
    intact: dict[str, Acceptance] = {}
    falls = []
    with tempfile.TemporaryDirectory() as folder:
        for name, draft in {
            "as trained": model / "draft",
            "taps one layer off": shifted_taps(Path(folder), model / "draft"),
        }.items():
            for law, params in {"greedy": SamplingParams(), "T = 1, top-k 20, top-p 0.95": SAMPLED}.items():
                asked_for = replace(params, max_tokens=max_tokens)
                whole = acceptance(draft, asked_for, kinds.prompts, target=model / "target", **settings)
                for part, one in parts.items():
                    seen = whole.of(one)
                    low, high = seen.interval()
                    yield (
                        f"| {name} | {law} | {part} | {seen.emitted_per_round:.2f} | {low:.2f} to {high:.2f} "
                        f"| {seen.tokens} | {seen.rounds} | {seen.stopped} of {seen.prompts} |"
                    )
                if law in intact:
                    falls.append((law, *intact[law].fall_to(whole)))
                intact.setdefault(law, whole)
    yield from ("", "| sampling | lost to the shifted taps | 95 %, paired by prompt |", "|---|--:|--:|")
    for law, fall, low, high in falls:
        yield f"| {law} | {fall:.2f} | {low:.2f} to {high:.2f} |"
