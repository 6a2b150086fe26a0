"""What holds for any verdict: the contract, the words for one process, time and size."""

from __future__ import annotations

import gc
import json
import re
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import cases
import jsonschema
import pytest
from cases import (
    IN_ALL_REDUCE,
    IN_BARRIER,
    IN_GETITEM,
    IN_LOAD,
    IN_LOADER,
    IN_WANDB,
    LOCKED,
    MAIN,
    NOW_NS,
    SECOND,
    SITE,
    WANTS_WORK,
    Frames,
    gone,
    job,
    missing,
    rank,
    torch,
    user,
    with_kernel,
    with_lock_owner,
    with_threads,
    worker,
)
from cases import waiting_for as waits
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from msgspec.structs import replace

from lightning_hangcheck.judge import judge
from lightning_hangcheck.judge.activity import read_rank_activity
from lightning_hangcheck.judge.verdict import without_collections
from lightning_hangcheck.model.beat import Beat, CheckpointMark, OpenSection
from lightning_hangcheck.model.case import Alike, Case, Pace, ProcessExit, RankView, RunFacts
from lightning_hangcheck.model.codec import encode, encode_for_file, verdict_schema
from lightning_hangcheck.model.evidence import (
    Frame,
    Gap,
    MemoryUse,
    ProcessLook,
    ProcessStack,
    ProcessState,
    Sample,
    ThreadStack,
    ThreadState,
)
from lightning_hangcheck.model.words import PHASES
from lightning_hangcheck.report.verdict_text import render
from lightning_hangcheck.text.shown import format_ranks, parse_ranks

if TYPE_CHECKING:
    from collections.abc import Callable

    from lightning_hangcheck.model.slugs import Cause

SCHEMA = jsonschema.Draft202012Validator(verdict_schema())
KNOWN = [WANTS_WORK, *(told for name, told in vars(cases).items() if name.startswith("IN_"))]
texts = some.text(max_size=8)
small = some.integers(0, 3)
seconds = some.floats(-1.0, 1e12)
letters = some.sampled_from("RSDTtZX")
frames = some.one_of(
    some.sampled_from(KNOWN),
    some.lists(some.builds(Frame, texts, texts, small), max_size=3).map(tuple),
)
threads = some.builds(ThreadStack, tid=small | some.none(), frames=frames)
states = some.builds(
    ThreadState, tid=small, state=letters, cpu_s=seconds, syscall=small | some.none()
)
kernels = some.builds(
    ProcessState,
    pid=small,
    parent_pid=small,
    state=letters,
    started_ticks=small,
    cpu_s=seconds,
    read_bytes=some.integers(0, 10**7) | some.none(),
    written_bytes=some.integers(0, 10**7) | some.none(),
    threads=some.lists(states, max_size=2).map(tuple),
)
stacks = some.builds(
    ProcessStack, pid=small, source=texts, threads=some.lists(threads, max_size=2).map(tuple)
)
samples = some.builds(
    Sample,
    taken_ns=some.integers(NOW_NS - 5 * SECOND, NOW_NS),
    kernel=kernels | some.none(),
    stack=stacks | some.none(),
)
looks = some.builds(
    ProcessLook,
    pid=small,
    role=some.sampled_from(["rank", "rank", "worker", "child"]),
    index=small,
    samples=some.lists(samples, max_size=3).map(tuple),
)
beats = some.builds(
    Beat,
    pid=small,
    beats=small,
    phase=some.sampled_from(PHASES) | some.none(),
    checkpoint=some.builds(CheckpointMark, small, texts, texts) | some.none(),
    sections=some.lists(some.builds(OpenSection, texts, small), max_size=2).map(tuple),
    ending=some.sampled_from(["running", "finished", "raised"]),
    last_words=texts,
)
process_exits = some.builds(
    ProcessExit, order=small, at=texts, exit_code=some.integers(-70, 260) | some.none()
)
ranks = some.builds(
    RankView,
    rank=some.integers(-1, 4),
    pid=small | some.none(),
    beat=beats | some.none(),
    silent_for_s=seconds,
    idle_for_s=seconds,
    pace=some.builds(Pace, longest_pause_s=seconds, pauses=small) | some.none(),
    processes=some.lists(looks, max_size=3).map(tuple),
    process_exit=some.none() | process_exits,
)
whole_cases = some.builds(
    Case,
    run=some.builds(
        RunFacts,
        run_id=texts,
        command=texts,
        started_at=texts,
        world_size=some.integers(-1, 10**9),
        nnodes=small,
        local_world_size=small | some.none(),
    ),
    taken_at=some.sampled_from(["2026-11-20T10:24:16.5Z", "0001-01-01T00:00:00Z", "yesterday"]),
    taken_ns=some.just(NOW_NS),
    ranks=some.lists(ranks, max_size=5).map(tuple),
    gaps=some.lists(some.builds(Gap, texts, some.none(), texts), max_size=1).map(tuple),
    ended=some.booleans(),
    exit_code=some.integers(-15, 255) | some.none(),
)


@pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisWarning")
@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(whole_cases)
def test_any_case_is_judged_by_the_contract(case: Case) -> None:
    """No case raises; each verdict is of the schema, blames no victim, and calls no mover hung."""
    verdict = judge(case)
    data = encode(verdict)
    SCHEMA.validate(json.loads(data))
    assert set(verdict.culprits).isdisjoint(verdict.victims)
    assert encode(judge(case)) == data
    if verdict.verdict in ("hang", "suspect"):
        blamed = [view for view in case.ranks if view.rank in verdict.culprits]
        first = {view.rank: view for view in reversed(blamed)}
        assert "moving" not in {read_rank_activity(view).activity for view in first.values()}
    if verdict.cause is not None:
        assert verdict.remedies
        assert verdict.summary


# A job of one process hears nothing of ranks that it has not.

OF_SEVERAL = re.compile(
    r"collective|process.group|\bgroup\b|\branks\b|(other|every|each|all) ranks?\b|the others"
    r"|barrier|torchrun|distributed|flight record",
    re.IGNORECASE,
)
SAVING = (MAIN, user("save_weights", 7), torch("save", "serialization.py"))
LOADING = (MAIN, user("begin", 7), torch("load", "serialization.py"))


def alone(*stack: Any, **fields: Any) -> RankView:
    return rank(0, *stack, silent=301.0, **fields)


STUCK: dict[Cause, RankView] = {
    "rank_stalled": alone(IN_LOAD),
    "spinning": alone(IN_LOAD, cpu=1.0),
    "process_stopped": alone(IN_LOAD, state="T"),
    "dataloader_worker": alone(IN_LOADER, children=[worker(0, IN_GETITEM)]),
    "file_lock": alone(IN_LOAD, **waits("lock", "flock", "/data/x.lock", 4711)),
    "network_wait": alone(IN_LOAD, **waits("socket", "recvfrom", "10.0.0.7:443")),
    "filesystem_wait": alone(IN_LOAD, **waits("file", "read", "/data/x")),
    "checkpoint_io": alone(SAVING, **waits("file", "write", "/data/x.ckpt")),
    "model_load": alone(LOADING),
    "logger_init": alone(IN_WANDB),
    "thread_deadlock": with_threads(alone(IN_LOAD), LOCKED),
    "gil_held": with_lock_owner(alone(IN_LOAD)),
    "memory_pressure": with_kernel(
        alone(IN_LOAD), major_faults=lambda n, _: 400 * n, memory=MemoryUse(97, 100, "machine")
    ),
    "unknown": alone(),
}


def _told(case: Case) -> str:
    return render(case, judge(case), "run")


@pytest.mark.parametrize("cause", STUCK)
def test_a_verdict_on_one_process_speaks_of_one(cause: Cause) -> None:
    why = "its process is stopped, so its server does not answer"
    missed = Gap("flight record", 0, why, "flight_record")
    case = job(STUCK[cause], gaps=(missed,), command="python train.py")
    verdict = judge(case)
    assert (verdict.cause, verdict.culprits) == (cause, (0,))
    assert verdict.phase is not None
    assert verdict.remedies
    assert not OF_SEVERAL.search(_told(case)), _told(case)


@pytest.mark.parametrize("code", [-9, 1, 3])
def test_a_crash_of_one_process_speaks_of_one(code: int) -> None:
    case = job(gone(0, code, words="KeyError: 3"), ended=True, exit_code=1, command="python x.py")
    assert judge(case).verdict == "crashed"
    assert judge(case).remedies
    assert not OF_SEVERAL.search(_told(case)), _told(case)


# Many ranks: a verdict is made in their share of time, without collections, and stays small.

DEEP = tuple(Frame(f"call_{n}", f"{SITE}/lightning/pytorch/x.py", n) for n in range(40))


MOST_BYTES = 256_000
MOST_LINES = 40


def of_many(world: int, usual: RankView, odd: RankView, every: int) -> Case:
    """A job in which every so many ranks stand as the odd one, all others as the usual one."""
    odds = range(1, world, every)
    rest = sorted(set(range(world)) - set(odds))
    views = replace(usual, rank=rest[0]), replace(odd, rank=odds[0])
    alike = [Alike(rank=ranks[0], ranks=format_ranks(ranks)) for ranks in (rest, list(odds))]
    return job(*views, world_size=world, alike=tuple(alike))


@pytest.mark.parametrize(
    ("odd", "every"), [(rank(1, IN_LOAD), 2), (gone(1, -9), 3), (missing(1), 100)]
)
def test_the_file_and_the_report_of_many_ranks_stay_small(odd: RankView, every: int) -> None:
    case = of_many(8_000, rank(0, IN_ALL_REDUCE), odd, every)
    verdict = judge(case)
    assert len(encode_for_file(verdict)) <= MOST_BYTES
    assert len(render(case, verdict, "run").splitlines()) <= MOST_LINES
    assert len(verdict.culprits) == min(1_024, len(range(1, 8_000, every)))


def test_what_was_left_out_is_counted_and_the_rest_is_whole() -> None:
    verdict = judge(of_many(8_000, rank(0, IN_ALL_REDUCE), rank(1, IN_LOAD), 100))
    assert [row.rank for row in verdict.ranks] == [0, *verdict.culprits]
    whats = [gap.what for gap in verdict.gaps]
    assert "6,896 of 7,920 victims" in whats
    assert verdict.culprits == tuple(range(1, 8_000, 100))
    waiting, standing = verdict.stack_groups
    assert (waiting.count, standing.count) == (7_920, 80)
    assert parse_ranks(standing.ranks) == verdict.culprits
    assert {edge.target for edge in verdict.wait_for} == {f"rank:{one}" for one in verdict.culprits}


@pytest.mark.parametrize("other_half", [IN_BARRIER, IN_LOAD])
def test_eight_times_the_ranks_take_no_more_than_their_share_of_time(other_half: Frames) -> None:
    """A walk from each rank to each other one would take 64 times as long."""

    def spent_s(ranks: int) -> float:
        stacks = [(*DEEP, *(IN_ALL_REDUCE if 2 * n < ranks else other_half)) for n in range(ranks)]
        case = job(*(rank(n, stack) for n, stack in enumerate(stacks)))
        started = time.process_time()
        assert len(judge(case).ranks) == ranks
        return time.process_time() - started

    judge(job(rank(0, IN_LOAD)))  # reads the data files
    assert min(spent_s(512) for _ in range(2)) < 24 * min(spent_s(64) for _ in range(3))


@pytest.mark.parametrize("first_to_end", [0, 1])
def test_of_two_threads_either_may_end_first(first_to_end: int) -> None:
    stacks = ExitStack(), ExitStack()
    for stack in stacks:
        _in_thread(lambda stack=stack: stack.enter_context(without_collections()))
    assert not gc.isenabled()
    for stack in (stacks[first_to_end], stacks[1 - first_to_end]):
        _in_thread(stack.close)
    assert gc.isenabled()


def _in_thread(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
