"""The engine's front door. ``LLM.step`` is the whole flow: prefill, then draft -> verify -> reject -> commit."""

from __future__ import annotations

import itertools
import operator
import secrets
import time
from collections.abc import Iterator, Sequence

from engine.config import EngineConfig
from engine.drafting import make_context, make_drafter
from engine.errors import InputError
from engine.loading import load_model
from engine.model.followers import Leader, follow
from engine.model.tokenizer import TextStream
from engine.parallel.group import Alone, Group
from engine.request import MAX_SEED, Request, SamplingParams
from engine.result import GenerationResult, Recorder, StepClock, refused
from engine.run import Round, RoundObserver, Run, SeedNoise
from engine.scheduler import Scheduler
from engine.steps.commit import commit
from engine.steps.context import RoundShape
from engine.steps.draft import DraftItem
from engine.steps.prefill import PrefillChunk, prefill
from engine.steps.records import Fault, Proposal, Verification
from engine.steps.reject import reject
from engine.steps.report import reports_of
from engine.steps.verify import VerifyItem, verify

Prompt = str | Sequence[int]


class LLM:
    """A model with its caches. Not for several threads at once: one caller steps it."""

    def __init__(self, config: EngineConfig | None = None, group: Group | None = None) -> None:
        """Load the model. Raises ``InputError`` for a config or a model file that cannot be used.

        Over several ranks, ``group`` is this rank's; only rank 0 generates, the others call `follow`.
        """
        self.config = config or EngineConfig()
        self._group = group or Alone()
        model = load_model(self.config, self._group)
        self.model = model
        self.tokenizer = model.tokenizer
        self.max_model_len = model.max_model_len
        self.runner = model.runner
        self.pool = model.pool
        self.pools = model.pools
        self.observer: RoundObserver | None = None
        self._scheduler: Scheduler[Run] = Scheduler(
            model.pool,
            max_sequences=self.config.max_sequences,
            max_prefill_rows=self.config.prefill_chunk,
            verify_width=model.round_rows,
            prefill_multiple=model.pools.prefill_multiple,
        )
        self._drafter = make_drafter(self.config, model.draft)
        self.context = make_context(self.config, model.runner, model.draft)
        self._request_ids = itertools.count()

    def generate(self, prompt: Prompt, params: SamplingParams | None = None) -> GenerationResult:
        """One prompt (text as it is, or token ids) to its end. Raises ``InputError`` for a prompt that does not fit."""
        request = self._request(prompt, params or SamplingParams())
        return self._to_the_end([self._admit(request)])[0]

    def generate_batch(
        self, prompts: Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams]
    ) -> list[GenerationResult]:
        """Several prompts together, results in their order.

        A prompt that `generate` would refuse with an ``InputError`` gives a result with finish reason "error" and that
        message; the others run. Raises ``InputError`` where ``params`` is a list of another length than ``prompts``.
        """
        settings = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
        if len(settings) != len(prompts):
            raise InputError(f"{len(settings)} params for {len(prompts)} prompts; allowed: one for all, or one each")
        asked = [self._request_or_refusal(prompt, one) for prompt, one in zip(prompts, settings, strict=True)]
        runs = [self._admit(request) for request in asked if isinstance(request, Request)]
        results = iter(self._to_the_end(runs))
        return [next(results) if isinstance(request, Request) else request for request in asked]

    def _to_the_end(self, runs: Sequence[Run]) -> list[GenerationResult]:
        try:
            while self._scheduler.has_work:
                self.step()
        finally:
            for run in runs:
                self.withdraw(run)
        return [run.result() for run in runs]

    def _request_or_refusal(self, prompt: Prompt, params: SamplingParams) -> Request | GenerationResult:
        try:
            return self._request(prompt, params)
        except InputError as error:
            return refused(str(error), params, self.config.verify_width - 1)

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> TextGeneration:
        """One prompt, its text piece by piece. Raises ``InputError`` for a prompt that does not fit."""
        return TextGeneration(self, self._admit(self._request(prompt, params or SamplingParams())))

    def chat_prompt(self, message: str, system: str | None = None) -> list[int]:
        """Token ids of one user message in the model's chat template, up to the assistant's first word."""
        messages = [{"role": "system", "content": system}] if system is not None else []
        return self.tokenizer.encode(self.tokenizer.chat_prompt([*messages, {"role": "user", "content": message}]))

    def follow(self) -> int:
        """On a rank that is not 0: run what rank 0 announces until it closes; how many forwards that were."""
        return follow(self.runner, self._group)

    def close(self) -> None:
        """On rank 0: let the other ranks go. Nothing can be generated after it; with one rank it does nothing."""
        if self._group.size > 1:
            Leader(self._group).dismiss()

    def step(self) -> None:
        """A chunk of prefill for those who need it, then one round for each sequence that decodes."""
        plan = self._scheduler.plan()
        if plan.prefill:
            chunks = [PrefillChunk(run.sequence, run.request.params, count, run.noise) for run, count in plan.prefill]
            for (run, count), verification in zip(plan.prefill, prefill(self.runner, chunks), strict=True):
                if verification is None:
                    run.sequence.commit(count)
                else:
                    self._reject_and_commit(run, Proposal(), verification, StepClock(), first_rows=count)
            self.context.committed([run.sequence for run, _ in plan.prefill])
        if plan.decode:
            clock = StepClock(self.context.take_seconds())
            runs, items = self._draft(plan.decode)
            clock.drafted()
            verifications = verify(self.runner, items, self.config.rejection) if items else []
            clock.verified()
            self.context.verified(RoundShape(tuple(item.num_rows for item in items), len(plan.prefill)))
            for run, item, verification in zip(runs, items, verifications, strict=True):
                self._reject_and_commit(run, item.proposal, verification, clock)
            self.context.committed([run.sequence for run in runs])
        for run in plan.everyone:
            if run.finished:
                self.withdraw(run)

    def _draft(self, decoding: Sequence[Run]) -> tuple[list[Run], list[VerifyItem]]:
        """Who goes on to verification, and with what; a request for which nothing may be drafted fails alone."""
        runs: list[Run] = []
        items: list[VerifyItem] = []
        asked = [
            DraftItem(run.sequence, self._width(run), run.request.params.temperature, run.noise) for run in decoding
        ]
        for run, drafted in zip(decoding, self._drafter.draft(asked), strict=True):
            if isinstance(drafted, Fault):
                run.fail(drafted)
                continue
            runs.append(run)
            params = run.request.params
            items.append(
                VerifyItem(run.sequence, params, drafted.proposal, noise=run.noise, reservation=drafted.reservation)
            )
        return runs, items

    def _width(self, run: Run) -> int:
        own = run.request.params.draft_tokens
        return max(0, min(self.config.draft_tokens if own is None else own, run.drafts_allowed))

    def _reject_and_commit(
        self,
        run: Run,
        proposal: Proposal,
        verification: Verification | Fault,
        clock: StepClock,
        first_rows: int = 1,
    ) -> None:
        if isinstance(verification, Fault):
            run.fail(verification)
            return
        start = time.perf_counter()
        acceptance = reject(proposal, verification, run.noise)
        rejected = time.perf_counter()
        committed = commit(run.sequence, run.request, acceptance, first_rows)
        now = time.perf_counter()
        times = clock.times(reject_s=rejected - start, commit_s=now - rejected)
        run.record(acceptance, committed, now, times, reports_of(verification, committed, run.request.params))
        if self.observer is not None:
            self.observer.round(Round(run, proposal, verification, acceptance, committed))

    def withdraw(self, run: Run) -> None:
        """Remove a request, finished or not, and free its blocks; removing it twice does no harm."""
        self._scheduler.remove(run)

    def _request(self, prompt: Prompt, params: SamplingParams) -> Request:
        """Resolve everything that a request leaves open, or say why it cannot run."""
        token_ids = tuple(self.tokenizer.encode(prompt) if isinstance(prompt, str) else _whole_numbers(prompt))
        unknown = [token_id for token_id in token_ids if not 0 <= token_id < self.runner.vocab_size]
        if unknown:
            raise InputError(f"token id {unknown[0]} in the prompt; allowed: 0 to {self.runner.vocab_size - 1}")
        room = self.max_model_len - len(token_ids)
        if room < 1:
            raise InputError(
                f"the prompt has {len(token_ids)} tokens; allowed: up to {self.max_model_len - 1}, the context of "
                f"{self.max_model_len} less one token to emit"
            )
        self._check_sampling(params)
        max_tokens = min(params.max_tokens, room)
        slots = len(token_ids) + max_tokens + self.model.round_rows
        if slots > self.pool.capacity_tokens:
            raise InputError(
                f"the request needs {slots} KV slots (prompt {len(token_ids)}, reply {max_tokens}, one round); the "
                f"cache has {self.pool.capacity_tokens}: ask for fewer tokens or raise kv-cache-tokens"
            )
        return Request(
            request_id=next(self._request_ids),
            prompt_token_ids=token_ids,
            params=params,
            seed=secrets.randbelow(MAX_SEED + 1) if params.seed is None else params.seed,
            max_tokens=max_tokens,
            stop_token_ids=(
                self.tokenizer.eos_token_ids if params.stop_token_ids is None else frozenset(params.stop_token_ids)
            ),
        )

    def _check_sampling(self, params: SamplingParams) -> None:
        """What only the engine knows the limits of."""
        vocab, drafts = self.runner.vocab_size, self.config.verify_width - 1
        params.rules.check_vocabulary(vocab)
        if params.logprobs is not None and params.logprobs > vocab:
            raise InputError(f"logprobs is {params.logprobs}; allowed: up to the {vocab} tokens of the model")
        if params.draft_tokens is not None and params.draft_tokens > drafts:
            raise InputError(
                f"draft-tokens of the request is {params.draft_tokens}; allowed: 0 to {drafts}, the engine's own"
            )

    def _admit(self, request: Request) -> Run:
        run = Run(
            request,
            self.pools.sequence(request.prompt_token_ids),
            Recorder(request, time.perf_counter(), self.config.verify_width - 1),
            TextStream(self.tokenizer),
            SeedNoise(request.seed),
        )
        self._scheduler.add(run)
        return run


def _whole_numbers(prompt: Sequence[int]) -> list[int]:
    try:
        return [operator.index(token_id) for token_id in prompt]
    except TypeError as error:
        raise InputError(
            f"the prompt holds something other than token ids: {error}; allowed: text, or whole numbers"
        ) from error


class TextGeneration:
    """The text of one request as it comes. Iterate over it; ``result`` tells the figures so far at any time."""

    def __init__(self, llm: LLM, run: Run) -> None:
        self._llm = llm
        self._run = run

    def __iter__(self) -> Iterator[str]:
        """Pieces of whole characters, none empty. Leaving early (or an interrupt) withdraws the request."""
        shown = 0
        try:
            while not self._run.finished:
                self._llm.step()
                if len(self._run.text) > shown:
                    yield self._run.text[shown:]
                    shown = len(self._run.text)
        finally:
            self._llm.withdraw(self._run)

    def result(self) -> GenerationResult:
        """The record; its finish reason is "aborted" when the text did not end by itself."""
        return self._run.result()
