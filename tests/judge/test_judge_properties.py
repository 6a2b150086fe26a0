"""What holds for the judgement of any case at all."""

from __future__ import annotations

import json

import cases
import jsonschema
import pytest
from cases import NOW_NS, SECOND, WANTS_WORK
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from lightning_hangcheck.judge import judge
from lightning_hangcheck.judge.activity import read_rank_activity
from lightning_hangcheck.model.beat import Beat, CheckpointMark, OpenSection
from lightning_hangcheck.model.case import Case, Pace, ProcessExit, RankView, RunFacts
from lightning_hangcheck.model.codec import encode, verdict_schema
from lightning_hangcheck.model.evidence import (
    Frame,
    Gap,
    ProcessLook,
    ProcessStack,
    ProcessState,
    Sample,
    ThreadStack,
    ThreadState,
)
from lightning_hangcheck.model.words import PHASES

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
