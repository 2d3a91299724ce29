"""Options of `python -m engine` that say how tokens are chosen and drafted, and the records that they become."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, get_args

from engine.config import DraftKind, EngineConfig, EnvironmentDefaults, LawForm
from engine.errors import InputError
from engine.request import SamplingParams
from engine.sampling.rules import LogitsRules

_DEFAULTS = EngineConfig()
_FUSION = {
    "weak": "match length that may replace drafts which agree with it",
    "strong": "match length that replaces drafts by itself",
    "agree": "drafted tokens that must agree with a weak match",
    "tail": "match length that may continue a drafted block",
}


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    """How each token is chosen."""
    sampling = parser.add_argument_group("sampling")
    how = sampling.add_mutually_exclusive_group()
    how.add_argument("--greedy", action="store_true", help="the most likely token each time (the default)")
    how.add_argument("--temperature", type=float, default=0.0, metavar="T", help="above 0: draw; 0: greedy (default)")
    sampling.add_argument("--top-k", type=int, default=0, metavar="K", help="draw from the K best; 0: off (default)")
    sampling.add_argument("--top-p", type=float, default=1.0, metavar="P", help="nucleus mass; 1.0: off (default)")
    sampling.add_argument("--min-p", type=float, default=0.0, metavar="P", help="least share of the likeliest; 0: off")
    sampling.add_argument("--repetition-penalty", type=float, default=1.0, metavar="X", help="1.0: off (default)")
    sampling.add_argument("--presence-penalty", type=float, default=0.0, metavar="X", help="0: off (default)")
    sampling.add_argument("--frequency-penalty", type=float, default=0.0, metavar="X", help="0: off (default)")
    sampling.add_argument(
        "--logit-bias", action="append", default=[], metavar="ID:X", help="add X to a token's logit; may be repeated"
    )
    sampling.add_argument("--allow-ids", metavar="ID,ID", help="the only token ids that may be drawn")
    sampling.add_argument("--ban-ids", metavar="ID,ID", help="token ids that may never be drawn")
    sampling.add_argument(
        "--logprobs", type=int, metavar="N", help="with --json: log probability of each token and of the N likeliest"
    )
    sampling.add_argument("--seed", type=int, metavar="N", help="same seed, same tokens; default: a fresh one")
    sampling.add_argument("--max-tokens", type=int, default=256, metavar="N", help="limit of the reply (default 256)")


def add_speculation_options(parser: argparse.ArgumentParser) -> None:
    """What is drafted, and how drafts are judged."""
    speculation = parser.add_argument_group("speculation (the tokens' law does not change)")
    speculation.add_argument(
        "--draft",
        choices=get_args(DraftKind),
        default=_DEFAULTS.draft,
        help="lookup drafts from the request's own text, dflash2 with a draft model, dflash2+lookup with both "
        f"(default: {_DEFAULTS.draft})",
    )
    speculation.add_argument(
        "--draft-model",
        type=Path,
        metavar="DIR",
        help="the folder of a DFlash2 checkpoint made for the model; quasar-tiny has its own",
    )
    speculation.add_argument(
        "--draft-tokens",
        type=int,
        metavar="K",
        help=f"most tokens drafted per round (default {_DEFAULTS.draft_tokens})",
    )
    for name, what in _FUSION.items():
        default = getattr(_DEFAULTS, f"fusion_{name}")
        speculation.add_argument(f"--fusion-{name}", type=int, metavar="N", help=f"{what} (default {default})")
    speculation.add_argument(
        "--rejection",
        choices=get_args(LawForm),
        default=_DEFAULTS.rejection,
        help="judge drafts on whole rows, or on the few tokens that top-k can keep; same tokens "
        f"(default: {_DEFAULTS.rejection})",
    )


def sampling_params(options: argparse.Namespace) -> SamplingParams:
    """The request's record. Raises ``InputError`` for values that mean nothing."""
    if options.logprobs is not None and options.logprobs >= 0 and not options.json:
        raise InputError(f"logprobs is {options.logprobs} without json, which alone shows them; add --json")
    rules = LogitsRules(
        repetition_penalty=options.repetition_penalty,
        presence_penalty=options.presence_penalty,
        frequency_penalty=options.frequency_penalty,
        min_p=options.min_p,
        logit_bias=_biases(options.logit_bias),
        allowed_ids=None if options.allow_ids is None else _ids("allow-ids", options.allow_ids),
        banned_ids=frozenset() if options.ban_ids is None else _ids("ban-ids", options.ban_ids),
    )
    return SamplingParams(
        temperature=0.0 if options.greedy else options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        seed=options.seed,
        max_tokens=options.max_tokens,
        rules=rules,
        logprobs=options.logprobs,
    )


def speculation_settings(options: argparse.Namespace, environment: EnvironmentDefaults) -> dict[str, Any]:
    """Fields of the engine's config. Raises ``InputError`` for options of a drafter that does not draft."""
    if options.draft == "none" and options.draft_tokens is not None:
        raise InputError(
            f"draft-tokens is {options.draft_tokens} with draft none; allowed: with a drafter, as in --draft lookup"
        )
    fusion = {f"fusion_{name}": getattr(options, f"fusion_{name}") for name in _FUSION}
    given = {name: value for name, value in fusion.items() if value is not None}
    if given and options.draft != "dflash2+lookup":
        name = next(iter(given)).replace("_", "-")
        raise InputError(f"{name} is given with draft {options.draft!r}; allowed: with draft dflash2+lookup")
    return {
        "draft": options.draft,
        "draft_model": options.draft_model,
        "draft_tokens": _DEFAULTS.draft_tokens if options.draft_tokens is None else options.draft_tokens,
        **given,
        "rejection": options.rejection,
        "context_pipeline": environment.context_pipeline,
        "context_kv_graph": environment.context_kv_graph,
    }


def _ids(name: str, text: str) -> frozenset[int]:
    try:
        return frozenset(int(part) for part in text.split(","))
    except ValueError as error:
        raise InputError(f"{name} is {text!r}; allowed: whole numbers with commas between them, as in 5,17") from error


def _biases(entries: list[str]) -> dict[int, float]:
    biases: dict[int, float] = {}
    for entry in entries:
        token, value = _bias(entry)
        if token in biases:
            raise InputError(f"logit-bias names token {token} twice; allowed: once each")
        biases[token] = value
    return biases


def _bias(text: str) -> tuple[int, float]:
    token, _, value = text.partition(":")
    try:
        return int(token), float(value)
    except ValueError as error:
        raise InputError(f"logit-bias is {text!r}; allowed: ID:X, as in 42:-5.5") from error
