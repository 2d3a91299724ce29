from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from engine.scheduler import Scheduler
from engine.state.blocks import BlockPool
from engine.state.sequence import SequenceState

WIDTH = 4  # K+1
BLOCK = 4


@dataclass(eq=False)
class Job:
    sequence: SequenceState
    reply: int

    @property
    def finished(self) -> bool:
        return len(self.sequence.emitted) >= self.reply


def scheduler_of(pool: BlockPool, max_sequences: int = 3, rows: int = 6) -> Scheduler[Job]:
    return Scheduler(pool, max_sequences=max_sequences, max_prefill_rows=rows, verify_width=WIDTH)


def run_step(scheduler: Scheduler[Job], accepted: int) -> list[Job]:
    """What the engine does with a plan, without a model: the reservations must never fail."""
    plan = scheduler.plan()
    for job, count in plan.prefill:
        job.sequence.reserve(count)
        ends_prompt = job.sequence.num_computed + count == len(job.sequence.token_ids)
        job.sequence.commit(count, [7] if ends_prompt else ())
    for job in plan.decode:
        job.sequence.reserve(WIDTH)
        job.sequence.commit(accepted + 1, [7] * (accepted + 1))
    for job in plan.everyone:
        if job.finished:
            scheduler.remove(job)
    return list(plan.everyone)


@given(
    shapes=st.lists(st.tuples(st.integers(1, 14), st.integers(1, 12)), min_size=1, max_size=6),
    num_blocks=st.integers(9, 20),
    max_sequences=st.integers(1, 4),
    rows=st.integers(1, 9),
    accepted=st.integers(0, WIDTH - 1),
)
def test_every_request_ends_whatever_the_pool(
    shapes: list[tuple[int, int]], num_blocks: int, max_sequences: int, rows: int, accepted: int
) -> None:
    pool = BlockPool(num_blocks, BLOCK)
    scheduler = scheduler_of(pool, max_sequences, rows)
    jobs = [Job(SequenceState(range(prompt), pool), reply) for prompt, reply in shapes]
    for job in jobs:
        scheduler.add(job)
    # A token a step at worst, each request alone, and once more for what starts again.
    for _ in range(4 * sum(prompt + reply for prompt, reply in shapes)):
        if not scheduler.has_work:
            break
        assert run_step(scheduler, accepted), "a step that moves nobody would go on for ever"
    assert not scheduler.has_work
    assert all(job.finished for job in jobs)
    assert pool.num_free == num_blocks - 1


def test_prefill_rows_are_shared_first_come_first_served() -> None:
    pool = BlockPool(20, BLOCK)
    scheduler = scheduler_of(pool)
    first, second = Job(SequenceState(range(4), pool), 9), Job(SequenceState(range(9), pool), 9)
    scheduler.add(first)
    scheduler.add(second)
    assert scheduler.plan().prefill == ((first, 4), (second, 2))


def test_decoding_goes_on_beside_prefill() -> None:
    pool = BlockPool(20, BLOCK)
    scheduler = scheduler_of(pool)
    first = Job(SequenceState(range(4), pool), 9)
    scheduler.add(first)
    run_step(scheduler, 0)
    second = Job(SequenceState(range(9), pool), 9)
    scheduler.add(second)
    plan = scheduler.plan()
    assert (plan.prefill, plan.decode) == (((second, 6),), (first,))


def test_the_last_to_come_starts_again_when_blocks_run_out() -> None:
    pool = BlockPool(8, BLOCK)
    scheduler = scheduler_of(pool)
    jobs = [Job(SequenceState(range(6), pool), 15) for _ in range(2)]
    for job in jobs:
        scheduler.add(job)
    seen: list[int] = []
    while not jobs[1].sequence.emitted or jobs[1].sequence.num_computed:
        computed = jobs[0].sequence.num_computed
        run_step(scheduler, 0)
        assert jobs[0].sequence.num_computed > computed, "who came first gave way to who came last"
    seen = list(jobs[1].sequence.emitted)
    assert seen, "it had emitted something when it was put back"
    while scheduler.has_work:
        run_step(scheduler, 0)
    assert list(jobs[1].sequence.emitted)[: len(seen)] == seen
    assert all(job.finished for job in jobs)


def test_who_was_put_back_is_in_front_of_who_waits() -> None:
    """First come, first served, for those too who start again: nobody overtakes them in the queue."""
    pool = BlockPool(8, BLOCK)
    scheduler = scheduler_of(pool)
    jobs = [Job(SequenceState(range(6), pool), 15) for _ in range(3)]
    for job in jobs:
        scheduler.add(job)
    begun: list[Job] = []
    while scheduler.has_work:
        for job in run_step(scheduler, 0):
            if job not in begun:
                begun.append(job)
            assert job is not jobs[2] or jobs[1].sequence.num_computed or jobs[1].finished
    assert begun == jobs


def test_removing_twice_changes_nothing() -> None:
    pool = BlockPool(20, BLOCK)
    scheduler = scheduler_of(pool)
    job = Job(SequenceState(range(4), pool), 9)
    scheduler.add(job)
    scheduler.remove(job)
    scheduler.remove(job)
    assert not scheduler.has_work
