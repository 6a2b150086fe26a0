"""The judgement, by all that was really seen of the corpus: what was right must stay right."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from hangbench.recorded import Recording, recordings, right_in
from hangbench.scoring import ALARMS
from msgspec.structs import replace

from lightning_hangcheck.judge import judge
from lightning_hangcheck.model.verdict import Verdict

if TYPE_CHECKING:
    from lightning_hangcheck.model.evidence import ProcessLook, ProcessState

HELD_BY_THREAD = "hook_thread_died", "hang"
Judged = list[tuple[Recording, Verdict]]


@pytest.fixture(scope="module")
def judged() -> Judged:
    return [(one, judge(one.case)) for one in recordings()]


@pytest.fixture(scope="module")
def hanging(judged: Judged) -> Judged:
    return [pair for pair in judged if not pair[0].truth.healthy]


@pytest.fixture(scope="module")
def healthy(judged: Judged) -> Judged:
    return [pair for pair in judged if pair[0].truth.healthy]


@pytest.fixture(scope="module")
def answers(hanging: Judged) -> list[tuple[str, dict[str, bool]]]:
    return [(f"{one.program} ({one.kind})", right_in(one, verdict)) for one, verdict in hanging]


@pytest.mark.parametrize("answer", ["culprits", "cause", "phase", "line"])
def test_every_recorded_hang_is_explained_rightly(
    answers: list[tuple[str, dict[str, bool]]], answer: str
) -> None:
    assert [name for name, right in answers if not right.get(answer, True)] == []


def test_every_recorded_hang_is_called_what_it_was_called_then(hanging: Judged) -> None:
    """But for three.

    A worker and its rank wait for each other, which is proven at once by now; so is whom a helper
    thread waits for in its collective. A loop that asks a server was awake when it was looked at:
    that server may still answer.
    """
    other = [
        (one.program, verdict.verdict) for one, verdict in hanging if verdict.verdict != one.kind
    ]
    assert other == [
        ("lightning_logger_stalls", "suspect"),
        ("lock_kept_in_two_groups", "hang"),
        ("worker_reads_from_pipe", "hang"),
    ]


@pytest.mark.parametrize(("library", "verdict"), [("libtorch_cpu.so", "hang"), ("", "healthy")])
def test_threads_without_names_of_their_own_count_by_their_library(
    library: str, verdict: str
) -> None:
    """Those of gloo got names in torch 2.11 only; whose thread is unknown may end any wait."""

    def without_name(state: ProcessState) -> ProcessState:
        main, *others = state.threads
        threads = (
            replace(each, name=main.name, library=library) if "gloo_" in each.name else each
            for each in others
        )
        return replace(state, threads=(main, *threads))

    def look_at(process: ProcessLook) -> ProcessLook:
        samples = (
            replace(sample, kernel=sample.kernel and without_name(sample.kernel))
            for sample in process.samples
        )
        return replace(process, samples=tuple(samples))

    case = next(one.case for one in recordings() if (one.program, one.kind) == HELD_BY_THREAD)
    ranks = (replace(view, processes=tuple(map(look_at, view.processes))) for view in case.ranks)
    assert judge(replace(case, ranks=tuple(ranks))).verdict == verdict


def test_every_summary_of_a_stall_says_for_how_long(hanging: Judged) -> None:
    stalls = [(one.program, verdict.summary) for one, verdict in hanging if verdict.stalled_since]
    silent = [
        one for one, summary in stalls if not re.search(r"\d (s|min)\b|unknown time", summary)
    ]
    assert (len(stalls) > 100, silent) == (True, [])


FIRST_REMEDY = {
    "child_fills_pipe": "communicate(timeout=60)",
    "collective_in_signal_handler": "cases/collective_in_signal_handler.py:13: move what save_and",
    "exception_with_running_thread": "queue.put(None)",
    "executor_waits_for_itself": "give the inner ones an executor of their own",
    "fifo_without_writer": "a FIFO needs a process at its other end",
    "killed": "dmesg -T",
    "log_dir_on_rank_0": "native code that gives up (gloo, NCCL, CUDA) says why there",
    "logger_stalls": "guarded_wandb_logger",
    "logging_waits_for_its_sender": "with a lock in hand that this thread takes",
    "model_download_stalls": "hf download MODEL",
    "own_logger_stalls": "own_logger_stalls.py:32: give the connection",
    "pipeline_one_less": "post both at once",
    "pipes_full_beside_monitor": "let it read on",
    "queued_stopped": "kill -CONT",
    "raised": "fix what rank 1 raised",
    "server_never_answers": "requests.get(..., timeout=30)",
    "spawned_actor_takes_own_lock": "make it threading.RLock()",
    "uneven_ddp_batches": "give every rank as many batches",
    "worker_after_fork_wants_lock": 'multiprocessing_context="spawn"',
    "worker_stopped": "let it go on: kill -CONT",
    "worker_stuck": "worker_stuck.py:18: bound what Samples.__getitem__ waits for",
}
"""Words of the first remedy for what each of these programs hangs in."""


def test_what_helps_first_fits_what_was_seen(hanging: Judged) -> None:
    first = {one.program: verdict.remedies[0].in_words for one, verdict in hanging}
    assert {
        name: first[name] for name, words in FIRST_REMEDY.items() if words not in first[name]
    } == {}


def test_nobody_is_told_to_wake_what_is_not_stopped(hanging: Judged) -> None:
    woken = {
        one.program
        for one, verdict in hanging
        if any("kill -CONT" in remedy.in_words for remedy in verdict.remedies)
    }
    stopped = {name for name in woken if "stopped" in name}
    assert woken - stopped == {"traced_by_debugger"}


def test_who_only_sleeps_is_said_to_sleep(hanging: Judged) -> None:
    """Who reads of a sleep in a healthy job may wait for its end."""
    told = {one.program: verdict.summary for one, verdict in hanging}
    assert told["waits_for_missing_file"].startswith("rank 1 sleeps in wait_for_shard (")
    assert told["tracked_step_stalls"].startswith("rank 1 is stuck in get_observation (")


def test_no_healthy_program_is_called_a_hang(healthy: Judged) -> None:
    assert [one.program for one, verdict in healthy if verdict.verdict in ALARMS] == []


def test_what_a_thread_calls_is_under_no_test_that_its_main_thread_passed(healthy: Judged) -> None:
    """Rank 0 waits under a test for its thread; both ranks' threads make that call without one."""
    told = [verdict for one, verdict in healthy if one.program == "healthy_late_async_save"]
    assert told[0].culprits == (0, 1)
    assert "under if" not in told[0].summary


def test_the_recordings_are_those_of_the_corpus(hanging: Judged, healthy: Judged) -> None:
    assert len({one.program for one, _ in hanging}) > 140
    assert len({one.program for one, _ in healthy}) > 85


def test_what_is_advised_and_proven_needs_no_second_reading(hanging: Judged) -> None:
    """No name of Python's that a user did not write; a test of the rank is shown once, as code."""
    for one, verdict in hanging:
        assert not [remedy for remedy in verdict.remedies if "<module>" in remedy.in_words], one
        kinds = [item.kind for item in verdict.evidence if "under a test of the rank" in item.text]
        assert not kinds or "code" not in [item.kind for item in verdict.evidence], one
