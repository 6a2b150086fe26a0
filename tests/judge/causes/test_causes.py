"""Each cause, from a case of a few lines; what helps; and jobs in which every rank stands still."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from cases import (
    FUTEX,
    IN_ALL_REDUCE,
    IN_BARRIER,
    IN_CONNECT,
    IN_INIT,
    IN_LOAD,
    IN_LOADER,
    IN_WANDB,
    LOCKED,
    MAIN,
    STDLIB,
    agrees,
    changed_rank,
    gone,
    job,
    look,
    rank,
    user,
    waiting_for,
    with_threads,
)
from msgspec.structs import replace

from lightning_hangcheck.judge import judge
from lightning_hangcheck.model.beat import Beat, CheckpointMark, OpenSection
from lightning_hangcheck.model.case import RankView
from lightning_hangcheck.model.evidence import Frame, Gap, LocalValues, ThreadStack, WaitTarget
from lightning_hangcheck.model.flight import FlightRecord
from lightning_hangcheck.model.verdict import Gap as ToldGap
from lightning_hangcheck.model.words import phase_of_name

if TYPE_CHECKING:
    from lightning_hangcheck.model.case import Case

WAITS = rank(0, IN_ALL_REDUCE)
CONDITION = Frame("Condition.wait", f"{STDLIB}/threading.py", 327)
RESULT = (Frame("Future.result", f"{STDLIB}/concurrent/futures/_base.py", 451), CONDITION)
TASK = Frame("_worker", f"{STDLIB}/concurrent/futures/thread.py", 83)
COMPUTES = ThreadStack(tid=305, name="pool_1", frames=(TASK, user("crunch", 5)))
SLEEPS = {"waits_for": (WaitTarget(call="clock_nanosleep", kind="time"),)}
NO_SPLIT = "ValueError: no such split in check (train.py:12)"


def in_section(name: str, *frames: Any, silent: float = 31.0, **fields: Any) -> RankView:
    section = OpenSection(name, 0, **fields)
    beat = Beat(pid=101, beats=9, phase=phase_of_name(name), sections=(section,))
    return rank(1, *frames, silent=silent, beat=beat)


def debugged() -> RankView:
    """A rank that was silent for long before its debugger came."""
    silent = rank(1, IN_LOAD, state="t", silent=200.0)
    own, before = silent.processes[0], rank(1, IN_LOAD).processes[0].samples[:1]
    return replace(silent, processes=(replace(own, samples=(*before, *own.samples[1:])),))


def asking_store() -> RankView:
    """A rank that asks a store of the program's own, by what torch counts."""
    flight = FlightRecord(taken_ns=1, waits={"TCPStore__get": 1})
    stands = rank(1, IN_LOAD, **waiting_for("socket", "poll", "127.0.0.1:23705"))
    return replace(stands, flight=flight)


CAUSES: dict[str, tuple[Case | RankView, dict[str, Any]]] = {
    "a rank that computed silently is idle only since it stopped computing": (
        replace(rank(1, IN_LOAD, silent=200.0), idle_for_s=5.0),
        {"verdict": "suspect", "stalled_for_s": 5.0}),
    "a debugger that comes to a silent rank has not stopped it all the time": (
        debugged(), {"cause": None}),
    "one that was there all the time has": (
        rank(1, IN_LOAD, state="t", silent=200.0), {"cause": "process_stopped"}),
    "the first of several dead ranks is named first": (
        job(WAITS, gone(1, 1, order=1), gone(2, -11, order=0)),
        {"culprits": (2, 1), "says": "rank 2 was killed by SIGSEGV"}),
    **{
        f"a cause needs the deed, and a name tells less than a call: {section} ({sure})": (
            in_section(section, frames), {"cause": cause, "confidence": sure},
        )
        for section, frames, cause, sure in (
            ("WandbLogger constructor", IN_LOAD, "logger_init", 0.75),
            ("Datalogger sync", IN_LOAD, "rank_stalled", 0.85),
            ("upload wandb artifact", IN_LOAD, "rank_stalled", 0.85),
            ("Datalogger sync", IN_WANDB, "logger_init", 0.9),
            ("load model", IN_LOAD, "model_load", 0.6),
        )
    },
    "a loader without workers": (
        rank(1, IN_LOADER),
        {"cause": "dataloader_worker", "says": "none of its worker processes is left"}),
    "all ranks in one collective may be at work": (
        job(*(rank(n, IN_ALL_REDUCE, silent=200.0) for n in range(2))), {"verdict": "healthy"}),
    "but not for long": (
        job(*(rank(n, IN_ALL_REDUCE, silent=300.0) for n in range(2))),
        {"verdict": "hang", "culprits": (0, 1), "victims": (), "cause": "unknown"}),
    "a rank that moves is slow, however silent": (
        rank(1, IN_LOAD, bytes_s=10**6, silent=5_000.0),
        {"verdict": "slow", "culprits": (1,), "victims": (0,), "cause": "slow_progress"}),
    **{
        f"a culprit in a guard that goes on after {limit_s} s": (
            job(rank(0, IN_ALL_REDUCE, silent=40.0),
                in_section("wandb run creation", IN_LOAD, silent=40.0, goes_on_after_s=limit_s)),
            {"verdict": kind},
        )
        for limit_s, kind in ((None, "hang"), (60.0, "suspect"))
    },
    "at the store where rank 1 looks an outsider may come, so it is only suspected": (
        job(rank(0, IN_INIT, silent=60.0), rank(1, IN_CONNECT, silent=60.0), local_world_size=None),
        {"verdict": "suspect", "culprits": (1,), "cause": "rendezvous"}),
    "the exception that a stuck rank handles is evidence": (
        rank(1, IN_LOAD, beat=Beat(pid=101, rank=1, handling=NO_SPLIT)),
        {"fact": f"its main thread handles {NO_SPLIT}"}),
    **{
        f"who sleeps between tries that a remote end refuses waits for that: {error}": (
            rank(1, IN_LOAD, beat=Beat(pid=101, handling=error), silent=20.0, **SLEEPS),
            {"verdict": "suspect", "culprits": (1,), "cause": cause},
        )
        for error, cause in (
            ("ConnectionRefusedError: [Errno 111] refused in fetch (train.py:12)", "network_wait"),
            (NO_SPLIT, "rank_stalled"),
        )
    },
    "that the child is stopped is said": (
        rank(1, IN_LOAD, children=(look((MAIN,), pid=600, role="child", state="T"),),
             **waiting_for("process", "wait4", "600", 600)),
        {"says": "end of its child pid 600 (python), which is stopped by a signal",
         "now": "let it go on: kill -CONT 600"}),
    "a future whose thread computes, beside a lock of some other thread, is no deadlock": (
        with_threads(
            rank(1, (MAIN, user("emit", 24), *RESULT)), COMPUTES, LOCKED, takes_lock=False
        ),
        {"cause": "rank_stalled"}),
    "a store of one's own answers once somebody sets the key": (
        asking_store(),
        {"cause": "network_wait", "now": "look for the line that should set the key",
         "says": "for a key of the store at 127.0.0.1:23705, which no rank"}),
    "ranks that make one folder are told who makes it": (
        gone(1, exit_code=1, words="FileExistsError: [Errno 17] File exists: 'runs'"),
        {"cause": "process_dead", "now": "lightning_hangcheck.make_directory"}),
}  # fmt: skip
"""A rank alone is rank 1, for which rank 0 waits in all_reduce."""


@pytest.mark.parametrize("name", CAUSES)
def test_what_is_told_and_what_helps(name: str) -> None:
    case, expected = CAUSES[name]
    agrees(judge(job(WAITS, case) if isinstance(case, RankView) else case), expected)


def test_a_rank_that_cannot_be_seen_is_unknown_and_a_gap() -> None:
    refused = Gap("stack of pid 101", 1, "py-spy may not read it", "stack", "run as root")
    verdict = judge(job(rank(0, silent=301.0), rank(1, silent=301.0), gaps=(refused,)))
    assert (verdict.verdict, verdict.culprits, verdict.cause) == ("hang", (0, 1), "unknown")
    assert ToldGap("stack of pid 101", 1, "py-spy may not read it; run as root") in verdict.gaps
    assert "activity of rank 0" in [gap.what for gap in verdict.gaps]
    assert verdict.ranks[0].state == "unseen"


def test_the_page_stands_in_the_table_and_the_evidence() -> None:
    beat = Beat(
        pid=101,
        beats=5,
        step=12,
        phase="training_step",
        checkpoint=CheckpointMark(11, "Trainer ready", "2026-11-20T10:23:30Z"),
        sections=(OpenSection("fetch", 0), OpenSection("upload", 1, in_main_thread=False)),
    )
    verdict = judge(job(WAITS, rank(1, IN_LOAD, beat=beat)))
    row = verdict.ranks[1]
    assert (row.step, row.phase, row.open_sections) == (12, "training_step", ("upload", "fetch"))
    assert row.last_checkpoint.number == 11
    told = "\n".join(item.text for item in verdict.evidence)
    assert "last checkpoint 11 Trainer ready, step 12, inside section 'fetch'" in told
    assert verdict.phase == "training_step"


def test_evidence_that_no_rank_has_is_a_gap_that_names_what_nobody_looked_for() -> None:
    unseen = judge(job(rank(0, silent=301.0), rank(1, silent=301.0)))
    gaps = {gap.what: gap.why for gap in unseen.gaps}
    assert unseen.cause == "unknown"
    assert "rank_stalled" in gaps["Python stacks"]
    assert "file_lock" in gaps["the kernel's view of processes"]
    assert "process_stopped" not in "".join(gaps.values())  # it needs neither
    stuck = judge(job(WAITS, rank(1, IN_LOAD)))
    assert not gaps.keys() & {gap.what for gap in stuck.gaps}


INSIDE = Frame("sleep", "/venv/lib/python3.11/site-packages/waiting.py", 3)


def test_variables_are_told_with_the_users_line_and_only_where_they_were_read() -> None:
    view = rank(1, IN_LOAD)
    assert "variables" not in {item.kind for item in judge(job(WAITS, view)).evidence}
    (own,) = view.processes
    values = (
        LocalValues(IN_LOAD[-1], {"path": '"train.bin"', "batch": "17"}),
        LocalValues(INSIDE, {"seconds": "9"}),
    )
    newest = replace(own.samples[-1], local_values=values)
    with_values = replace(own, samples=(*own.samples[:-1], newest))
    verdict = judge(job(WAITS, replace(view, processes=(with_values,))))
    assert [(item.rank, item.text) for item in verdict.evidence if item.kind == "variables"] == [
        (1, 'variables in load (demo/train.py:41): path = "train.bin", batch = 17')
    ]


def test_a_remedy_holds_no_sign_that_a_terminal_obeys() -> None:
    """Names of functions and files are the job's own, and a remedy quotes them."""
    hostile = user("f\x1b[2J\nRECOVERED\x9b", 3, "/home/ada/demo/a\x1b]0;b.py")
    verdict = judge(job(rank(0, IN_ALL_REDUCE), rank(1, (hostile,))))
    assert verdict.remedies
    assert all(one.in_words.isprintable() for one in verdict.remedies)
    assert any("f\\x1b[2J RECOVERED" in one.text for one in verdict.remedies)


# A job that no collective joins: who is suspected where every rank stands still by itself.

FUTEX_WAIT = {"waits_for": FUTEX, "syscall": 202}
IN_POLL = (MAIN, user("wait_for_flag", 37))
STORE = waiting_for("socket", "recvfrom", "127.0.0.1:29500")


def polling(view: RankView, each: int = 1) -> RankView:
    """The rank, each time asleep until another moment, or until the same one."""
    return changed_rank(
        view,
        lambda number, states, stacks: ((replace(states[0], wakes_ns=1 + number * each),), stacks),
    )


def told(case: Case) -> tuple[Any, ...]:
    verdict = judge(case)
    return verdict.verdict, verdict.culprits, verdict.cause


def test_a_rank_that_sleeps_once_may_answer_the_other_when_it_wakes() -> None:
    """Remote procedure calls: one waits for an answer, for which a thread of the other sleeps."""
    asks = rank(0, IN_LOAD, silent=200.0, **FUTEX_WAIT)
    assert told(job(asks, rank(1, IN_POLL, silent=200.0, **FUTEX_WAIT)))[0] == "hang"
    once, again = (rank(1, IN_POLL, silent=200.0, **SLEEPS) for _ in range(2))
    assert told(job(asks, polling(once, each=0)))[0] == "suspect"
    assert told(job(asks, polling(again)))[0] == "hang"


def test_who_sleeps_for_days_holds_up_who_asks_again_and_again() -> None:
    sleeps = polling(rank(0, IN_LOAD, silent=300.0, **SLEEPS), each=0)
    asks = polling(rank(1, IN_POLL, silent=300.0, **SLEEPS))
    assert told(job(sleeps, asks)) == ("hang", (0,), "rank_stalled")


@pytest.mark.parametrize(("waits", "told"), [(FUTEX_WAIT, True), (STORE, False)])
def test_an_exception_that_ended_a_thread_explains_a_wait_in_the_ranks_own_memory(
    waits: dict[str, Any], told: bool
) -> None:
    error = "prefetch: ValueError: no such shard in fill (data.py:6)"
    verdict = judge(job(WAITS, rank(1, IN_LOAD, beat=Beat(pid=101, thread_error=error), **waits)))
    words = f"an exception had ended its thread {error}"
    assert (words in verdict.summary) is told
    assert (1, words) in [(item.rank, item.text) for item in verdict.evidence]
    assert ("hand its exception on" in verdict.remedies[0].text) is told


def test_a_rank_that_failed_is_dead_later_where_the_others_may_ask_for_anything() -> None:
    for silent, kind in ((5.0, "suspect"), (29.0, "suspect"), (30.0, "dead")):
        asks = rank(1, IN_POLL, silent=silent, **SLEEPS)
        assert told(job(gone(0, -9, silent=silent), asks)) == (kind, (0,), "process_dead")


def test_a_rank_that_failed_is_dead_where_the_others_ask_again_and_again() -> None:
    """They sleep until another moment each time, so they poll: a file that never comes."""
    for silent, kind in ((3.0, "suspect"), (5.0, "dead")):
        polls = [polling(rank(number, IN_POLL, silent=silent, **SLEEPS)) for number in (1, 2)]
        case = job(gone(0, -9, silent=silent), *polls)
        assert told(case) == (kind, (0,), "process_dead")
        assert judge(case).victims == (1, 2)


def test_a_rank_that_failed_stays_the_culprit_however_many_stand_still() -> None:
    asks = [rank(number, IN_LOAD, silent=400.0, **STORE) for number in (1, 2, 3)]
    assert told(job(gone(0, 1, silent=400.0), *asks)) == ("dead", (0,), "process_dead")


@pytest.mark.parametrize(("since_s", "kind"), [(1.0, "healthy"), (6.0, "hang")])
def test_a_circle_through_a_lock_is_as_old_as_its_last_step(since_s: float, kind: str) -> None:
    """The holder worked until then, and may have given the lock back since it was seen with it."""
    waits = rank(1, IN_POLL, silent=49.0, **waiting_for("lock", "fcntl", "/data/index.lock", 100))
    assert judge(job(rank(0, IN_BARRIER, silent=since_s), waits)).verdict == kind


def test_stalled_ranks_that_stand_apart_are_each_said_where() -> None:
    apart = [rank(0, IN_LOAD, silent=31.0), rank(1, (MAIN, user("convert", 9)), silent=31.0)]
    summary = judge(job(*apart)).summary
    assert summary.startswith("rank 0 is stuck in ")
    assert ", rank 1 in convert (" in summary


def test_each_rank_has_its_own_cause_and_that_of_most_is_named() -> None:
    lock = waiting_for("lock", "fcntl", "/data/index.lock", 4711)
    locked = [rank(number, IN_POLL, silent=31.0, **lock) for number in (0, 1)]
    stalled = [rank(number, IN_LOAD, silent=31.0) for number in (2, 3, 4)]
    verdict = judge(job(*locked, *stalled))
    assert (verdict.verdict, verdict.cause) == ("hang", "rank_stalled")
    assert verdict.culprits == (0, 1, 2, 3, 4)
    assert "/data/index.lock" in verdict.summary


def _left(ending: str = "running", membership: str = "member") -> RankView:
    """Rank 0 after os._exit(0), long ago."""
    beat = Beat(pid=100, ending=ending, membership=membership)
    return replace(gone(0, 0, silent=900.0), beat=beat)


def _asking(silent: float) -> RankView:
    return polling(rank(1, IN_POLL, silent=silent, **SLEEPS))


@pytest.mark.parametrize(
    ("silent", "kind"), [(9.9, "healthy"), (10.0, "suspect"), (299.0, "suspect"), (300.0, "dead")]
)
def test_a_rank_that_broke_off_may_be_what_all_others_ask_for(silent: float, kind: str) -> None:
    """Or something outside may be: what is asked for is seen by nobody."""
    blamed = (0,) if kind != "healthy" else ()
    cause = "process_dead" if blamed else None
    assert told(job(_left(), _asking(silent))) == (kind, blamed, cause)


@pytest.mark.parametrize(("ending", "membership"), [("finished", "member"), ("running", "left")])
def test_a_rank_that_came_to_its_end_is_not_what_another_asks_for(
    ending: str, membership: str
) -> None:
    case = job(_left(ending, membership), _asking(60.0))
    assert told(case) == ("suspect", (1,), "rank_stalled")


@pytest.mark.parametrize(("newest", "kind"), [(4.0, "healthy"), (5.0, "suspect"), (30.0, "hang")])
def test_a_job_stands_still_since_the_last_progress_of_any_rank(newest: float, kind: str) -> None:
    """An evaluator has waited for minutes; those that train are idle between two steps."""
    evaluates = rank(1, IN_POLL, silent=200.0)
    assert told(job(rank(0, IN_LOAD, silent=newest), evaluates))[0] == kind


ACCEPTS = waiting_for("socket", "accept4", "")
OF_RANK = waiting_for("socket", "recvfrom", "127.0.0.1:29999", 100)
OF_OUTSIDER = waiting_for("socket", "recvfrom", "10.0.0.1:443")


@pytest.mark.parametrize(
    ("waits", "kind"),
    [*((one, "healthy") for one in ({}, SLEEPS, ACCEPTS, OF_RANK)), (OF_OUTSIDER, "hang")],
)
def test_an_idle_rank_for_which_nobody_waits_may_wait_for_those_that_advance(
    waits: dict[str, Any], kind: str
) -> None:
    moves = (IN_LOAD, (*IN_LOAD, IN_LOAD[-1]), IN_LOAD)
    trains = rank(0, *moves, silent=0.5, cpu=1.0)
    assert told(job(trains, rank(1, IN_POLL, silent=301.0, **waits)))[0] == kind
