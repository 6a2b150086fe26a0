"""What is said in a terminal: verdicts, plans, stragglers and the start."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cases import NOW_NS, job
from constructed import FOLDER, running, suspect, verdict
from hangbench.recorded import case_of_program
from hypothesis import given, settings
from hypothesis import strategies as some
from msgspec.structs import replace
from planning.planned import machine, model, use

from lightning_hangcheck.cli.plan_command import render as render_plan
from lightning_hangcheck.cli.showing import coloured
from lightning_hangcheck.judge import judge
from lightning_hangcheck.model import evidence
from lightning_hangcheck.model.beat import Beat, StepTimes
from lightning_hangcheck.model.case import RankView
from lightning_hangcheck.model.evidence import (
    Frame,
    ProcessLook,
    ProcessStack,
    ProcessState,
    Sample,
    ThreadStack,
    ThreadState,
)
from lightning_hangcheck.model.slugs import CAUSES
from lightning_hangcheck.model.verdict import (
    EvidenceItem,
    Gap,
    RankState,
    Remedy,
)
from lightning_hangcheck.planning.plan import read_phase
from lightning_hangcheck.planning.planner import make_plan
from lightning_hangcheck.report import verdict_text
from lightning_hangcheck.report.paragraphs import TABLE_WIDTH
from lightning_hangcheck.report.start_report import render_start
from lightning_hangcheck.report.stragglers import find_stragglers, stragglers_lines
from lightning_hangcheck.report.verdict_text import render_stacks

if TYPE_CHECKING:
    from lightning_hangcheck.model.case import Case
    from lightning_hangcheck.model.slugs import Cause
    from lightning_hangcheck.model.verdict import Verdict

GOLDEN = Path(__file__).parent / "golden"

MOST_LINES = 40

RECORDED = ("worker_stuck", "missing_rank", "stopped_by_signal", "killed")


@cache
def golden_cases() -> dict[str, tuple[Case | None, Verdict]]:
    """Each with its verdict, whose text is a file of its name."""
    found: dict[str, tuple[Case | None, Verdict]] = {}
    for name in RECORDED:
        recorded = case_of_program(name)
        found[name] = recorded, judge(recorded)
    worker, hang = found["worker_stuck"]
    unseen = tuple(Gap("stack", rank, "py-spy timed out after 5 s") for rank in (0, 1))
    over = replace(hang, verdict="recovered", remedies=(), gaps=unseen)
    return {
        **found,
        "recovered": (worker, over),
        "suspect": (None, suspect()),
        "finished": (None, running("finished", "both ranks ended with exit code 0 after 41 steps")),
        "healthy": (None, running("healthy", "")),
        "slow": (None, running("slow", "rank 1 takes 5 times longer for a step than before")),
    }


texts = some.text(max_size=600)


@pytest.mark.parametrize("name", [*RECORDED, "recovered", "suspect", "finished", "healthy", "slow"])
def test_report_equals_its_golden_text(name: str) -> None:
    """After a change that is meant, run tests/report/write_golden.py and read the difference."""
    case, judged = golden_cases()[name]
    assert verdict_text.render(case, judged, FOLDER) == (GOLDEN / f"{name}.txt").read_text()


def test_the_fullest_report_fits_too() -> None:
    """Every part at its limit, so that a part that grows is noticed."""
    long_text = "word " * 400
    judged = verdict(
        "hang",
        stalled_for_s=1.0,
        cause="unknown",
        summary=long_text,
        culprits=tuple(range(0, 4096, 2)),
        victims=tuple(range(1, 4096, 2)),
        evidence=tuple(EvidenceItem("stack", None, long_text) for _ in range(9)),
        remedies=tuple(Remedy("\n".join("abc"), "d") for _ in range(9)),
        gaps=tuple(Gap("stack", rank, f"reason {rank}") for rank in range(9)),
        ranks=tuple(RankState(rank=rank, open_sections=(f"s {rank}",)) for rank in range(4096)),
    )
    lines = verdict_text.render(None, judged, FOLDER).splitlines()
    assert len(lines) <= MOST_LINES
    assert max(map(len, lines)) <= TABLE_WIDTH


@settings(max_examples=60, deadline=None)
@given(texts)
def test_nothing_from_the_job_can_steer_the_terminal(foreign: str) -> None:
    """Escape sequences and control characters of last words and file names are only shown."""
    judged = verdict(
        "crashed",
        summary=foreign,
        evidence=(EvidenceItem("last_words", 0, f"\x1b[31m{foreign}"),),
        remedies=(Remedy(foreign, foreign),),
        gaps=(Gap(foreign, None, foreign),),
    )
    text = verdict_text.render(None, judged, FOLDER)
    assert all(character.isprintable() for line in text.split("\n") for character in line)
    assert verdict_text.render_line(judged).isprintable()


def test_what_is_said_while_the_job_runs_is_a_line() -> None:
    """It names the likeliest remedy, and below how to save where that was done too seldom."""
    line = "rank 3 is silent since 12 s in evaluate (train.py:120)"
    assert verdict_text.render_line(suspect()) == f"SUSPECT  {line}  (job blocked 12 s)"
    remedies = (Remedy("give it a time limit", "https://a"), Remedy("or not", "https://b"))
    assert verdict_text.render_short(replace(suspect(), remedies=remedies), FOLDER) == (
        f"SUSPECT  {line}  (job blocked 12 s); do: give it a time limit; run folder {FOLDER}"
    )
    assert verdict_text.render_reminder(suspect(), 241.0, FOLDER) == (
        f"SUSPECT  still so 4 min later; the last report: {line}; run folder {FOLDER}"
    )
    advice = "no save seen in 45 min of training; over 30 min save every 5 to 10 epochs"
    ended = running("finished", "the job ended well")
    ended = replace(ended, evidence=(EvidenceItem("saves", None, advice),))
    told = f"      saves    {advice}"
    short = verdict_text.render_short(ended, FOLDER)
    assert short == f"FINISHED  the job ended well; run folder {FOLDER}\n{told}"
    report = verdict_text.render(None, ended, FOLDER)
    assert told in report.splitlines()
    assert report.count(advice) == 1


def test_the_earliest_of_equal_ranks_is_shown_across_midnight() -> None:
    """Clock texts have another order than moments."""
    silent = job(*(RankView(rank=r, silent_for_s=s) for r, s in ((0, 20.0), (1, 900.0))))
    silent = replace(silent, taken_at="2026-11-20T00:10:00.000000Z")
    states = tuple(RankState(rank=r, state="waiting") for r in (0, 1))
    text = verdict_text.render(silent, verdict("hang", ranks=states), FOLDER)
    assert "ranks 0-1  wait  since 23:55:00Z" in text


def test_more_situations_than_rows_are_counted() -> None:
    """None is lost silently, and a section around the whole stage does not hide the step."""
    states = tuple(
        RankState(rank=rank, state="waiting", step=rank, open_sections=("Trainer.fit",))
        for rank in range(3)
    ) + tuple(
        RankState(rank=rank, state="waiting", open_sections=(f"section {rank}",))
        for rank in range(3, 22)
    )
    text = verdict_text.render(None, verdict("hang", world_size=22, ranks=states), FOLDER)
    assert "      ranks 0-2  wait   steps 0-2, in Trainer.fit\n" in text
    assert "ranks 8-21  in 14 more situations, see verdict.json" in text


def test_colour_changes_no_character() -> None:
    text = (GOLDEN / "worker_stuck.txt").read_text()
    assert coloured(text).plain == text
    assert coloured(text).spans


@pytest.mark.parametrize("cause", CAUSES)
def test_every_cause_is_explained_or_honestly_not(cause: Cause) -> None:
    """A verdict of a newer version may have a cause that this version has no sentence for."""
    text = verdict_text.render(None, verdict("hang", cause=cause), FOLDER)
    assert f"why      {cause}: " in text


def test_the_report_stays_light_in_the_sidecar() -> None:
    """Importing the renderers must not bring in the judgement, which is large."""
    program = (
        "import sys; from lightning_hangcheck.report import verdict_text;"
        "heavy = {'networkx', 'lightning_hangcheck.judge.verdict', 'rich'};"
        "sys.exit(bool(heavy & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=120, check=False).returncode == 0


@pytest.mark.parametrize(
    ("world_size", "seconds", "cost"),
    [
        (1, 900.0, "job blocked 15 min"),
        (2, 5.0, "job blocked 5 s"),
        (64, 30.0, "job blocked 30 s = 32 rank minutes"),
        (8, 3600.0, "job blocked 60 min = 8.0 rank hours"),
        (4096, 9000.0, "job blocked 2.5 h = 10,240 rank hours"),
    ],
)
def test_what_a_stall_costs_is_told_in_units_that_fit(
    world_size: int, seconds: float, cost: str
) -> None:
    judged = verdict("hang", world_size=world_size, stalled_for_s=seconds)
    assert verdict_text.stall_cost(judged) == cost


FRAMES = (Frame("<module>", "/home/ada/train.py", 140), Frame("load", "/home/ada/data.py", 41))

STACK = ProcessStack(
    pid=7, source="py-spy", threads=(ThreadStack(tid=7, name="MainThread", frames=FRAMES),)
)

KERNEL = ProcessState(
    pid=7,
    parent_pid=1,
    state="S",
    started_ticks=1,
    cpu_s=2.5,
    threads=(ThreadState(tid=7, state="S", cpu_s=2.5, wchan="futex_wait"),),
)


def test_a_sample_shows_kernel_and_frames_outermost_first() -> None:
    look = ProcessLook(
        pid=7,
        role="rank",
        samples=(Sample(taken_ns=NOW_NS - 2 * 10**9, kernel=KERNEL, stack=STACK),),
    )
    text = render_stacks(job(RankView(rank=1, processes=(look,))))
    assert text.endswith(
        "rank 1 (pid 7), 1 sample\n"
        "  2.0 s before the end\n"
        "    kernel: state S, 2.50 s CPU, main thread in futex_wait\n"
        "    thread MainThread\n"
        "      <module> (/home/ada/train.py:140)\n"
        "      load (/home/ada/data.py:41)\n"
    )


def test_gaps_stand_at_the_end() -> None:
    whole = job(RankView(rank=1))
    gap = evidence.Gap("stack", 1, "py-spy timed out after 5 s")
    assert "not seen" not in render_stacks(whole)
    text = render_stacks(replace(whole, gaps=(gap,)))
    assert text.endswith("not seen\n  rank 1: stack: py-spy timed out after 5 s\n")


@pytest.mark.parametrize(
    ("culprits", "told"), [((0, 1), "All ranks create the logger"), ((0,), "One rank creates the")]
)
def test_a_cause_of_all_ranks_is_not_told_as_that_of_one(
    culprits: tuple[int, ...], told: str
) -> None:
    judged = verdict("hang", cause="logger_init", culprits=culprits)
    assert f"logger_init: {told}" in verdict_text.render(None, judged, FOLDER)


def pasted(text: str) -> dict[str, ast.expr]:
    """What stands under ``paste``, read as the arguments of a call."""
    lines = text.partition("paste")[2].partition("\n\n")[0]
    call = ast.parse(f"f({lines})", mode="eval").body
    assert isinstance(call, ast.Call)
    return {one.arg or "": one.value for one in call.keywords}


def test_what_is_to_be_pasted_is_python() -> None:
    """Eight bits are asked for as transformers wants them."""
    arguments = pasted(render_plan(make_plan(model(), machine(24, 24), use())))
    assert isinstance(arguments["max_memory"], ast.Dict)
    assert ast.literal_eval(arguments["max_memory"]) == {0: "21.6GB", 1: "21.6GB", "cpu": "64GB"}
    assert ast.literal_eval(arguments["device_map"]) == "auto"
    assert ast.literal_eval(arguments["dtype"]) == "bfloat16"
    arguments = pasted(render_plan(make_plan(model(), machine(80), use("int8"))))
    assert "quantization_config" in arguments
    assert "dtype" not in arguments


def test_nothing_is_to_be_pasted_that_the_loader_warns_of() -> None:
    text = render_plan(make_plan(model(), machine(6, cpu_gb=4), use()))
    assert "paste    nothing: it would need offload_folder" in text
    assert "offload_folder=" not in text
    assert "plan one of the ways out" in text


def test_a_plan_begins_with_its_class_and_tells_times_and_phases() -> None:
    phases = (read_phase("rollout:context=8192,batch=2"), read_phase("train:optimizer=30"))
    hostile = model(model_type="evil\x1b[2J")
    lines = render_plan(make_plan(model(), machine(80), use())).splitlines()
    assert (
        lines[0] == "FAST  llama-8b (8.03 billion weights, 16.1 GB in bfloat16) on 1 GPU of 80.0 GB"
    )
    assert lines[1].strip().startswith("all on one GPU")
    assert "      time     about 0.033 s a token, 17 s for 512 tokens" in lines
    assert (
        "      class    fast: one GPU holds all, with 5% left for the allocator's fragments"
        in lines
    )
    text = render_plan(make_plan(hostile, machine(80), use(), phases=phases))
    rollout, train = text.partition("phases   ")[2].splitlines()[:2]
    assert rollout.split()[:5] == ["rollout", "context", "8192,", "batch", "2"]
    assert "extra 30.0 GB" in train
    assert "\x1b" not in text


def measured(number: int, *marks: StepTimes) -> RankView:
    """A rank that had these sums at moments of the run, the last of them in the end."""
    beat = Beat(pid=100 + number, rank=number, step_times=marks[-1])
    return RankView(rank=number, pid=100 + number, beat=beat, step_sums=marks[:-1])


def sums(steps: int, loader_s: float, forward_s: float, rest_s: float) -> StepTimes:
    """Sums of equal steps."""
    return StepTimes(steps, steps * loader_s, steps * forward_s, steps * rest_s)


def evenly(number: int, loader_s: float, forward_s: float, rest_s: float) -> RankView:
    return measured(number, *(sums(n, loader_s, forward_s, rest_s) for n in range(10, 90, 10)))


def test_the_slowest_rank_is_the_one_with_most_work_of_its_own() -> None:
    """All steps of a distributed job take the same time, as the others wait for the slowest."""
    fast = [evenly(number, 0.02, 0.1, 0.28) for number in (0, 1, 3)]
    found = find_stragglers(job(*fast, evenly(2, 0.2, 0.1, 0.1)))
    assert found is not None
    assert [one.rank for one in found.ranks] == [2, 0, 1, 3]
    assert found.ranks[0].ratio == pytest.approx(2.5)
    assert stragglers_lines(found) == [
        "      steps    80 timed, 0.4 s each; slowest is rank 2: 0.3 s of its own, "
        "2.5 times the median rank's 0.12 s",
        "      where    rank 2: loader 0.2 s, forward 0.1 s, backward, optimizer and waiting "
        "0.1 s; median: loader 0.02 s, forward 0.1 s, backward, optimizer and waiting 0.28 s",
        "      trend    even: 0.4 s at first, 0.4 s in the end",
    ]


def test_of_two_ranks_the_slower_is_compared_with_the_other() -> None:
    """And those that are alike are called so."""
    found = find_stragglers(job(evenly(0, 0.1, 0.1, 0.4), evenly(1, 0.4, 0.1, 0.1)))
    assert found is not None
    assert (found.ranks[0].rank, found.ranks[0].ratio) == (1, pytest.approx(2.5))
    assert found.typical.rest_s == pytest.approx(0.4)
    alike = find_stragglers(job(evenly(0, 0.1, 0.1, 0.2), evenly(1, 0.1, 0.105, 0.195)))
    assert stragglers_lines(alike)[0].endswith("80 timed, 0.4 s each; all 2 ranks are alike")


def test_a_rank_that_became_slower_is_told_with_the_part_that_did() -> None:
    early, late = sums(40, 0.1, 0.1, 0.1), StepTimes(80, 4 + 40 * 0.7, 8, 8)
    marks = [sums(10 * n, 0.1, 0.1, 0.1) for n in range(1, 4)]
    lines = stragglers_lines(find_stragglers(job(measured(0, *marks, early, early, late))))
    assert (
        lines[-1]
        == "      trend    0.3 s at first, 0.9 s in the end; most in loader: 0.1 s, then 0.7 s"
    )


def test_nothing_is_said_of_few_steps_or_none() -> None:
    for few in (
        measured(0, sums(9, 1, 1, 1)),
        RankView(rank=0, beat=Beat(pid=1)),
        RankView(rank=0),
    ):
        assert find_stragglers(job(few)) is None
    assert find_stragglers(None) is None
    assert stragglers_lines(None) == []


TOLD = {"versions": "python 3.11.7, torch 2.13.0", "CUDA": "12.6, not initialized"}

GROUP = {"process group": "nccl, 4 ranks", "backends": "gloo, nccl"}


def test_what_all_have_in_common_is_one_line() -> None:
    """One process has nobody to differ from; one that has said nothing is compared with nobody."""
    states = {rank: {**TOLD, **GROUP, "RANK": str(rank)} for rank in range(4)}
    told = (
        "STATE     4 ranks at the start: python 3.11.7, torch 2.13.0; CUDA: 12.6, not initialized; "
        "process group: nccl, 4 ranks"
    )
    assert render_start(states, ()) == f"{told}; nothing differs"
    unheard = "of rank 5-6 nothing is known yet"
    assert render_start(states, [6, 5]) == f"{told}; {unheard}; nothing differs"
    (line,) = render_start({0: TOLD}, ()).splitlines()
    assert line.startswith("STATE     1 rank at the start: python")
    assert "differs" not in line


def test_what_differs_names_who_has_which_value() -> None:
    states = {rank: {**TOLD, "RANK": str(rank)} for rank in range(4)}
    states[2] = {**states[2], "NCCL_DEBUG": "INFO", "CUDA": "torch is built without it"}
    assert render_start(states, ()).splitlines() == [
        "STATE     4 ranks at the start: python 3.11.7, torch 2.13.0; what differs:",
        "          CUDA: 12.6, not initialized (rank 0-1,3); torch is built without it (rank 2)",
        "          NCCL_DEBUG: not set (rank 0-1,3); INFO (rank 2)",
    ]


def test_of_long_values_that_look_alike_the_part_that_differs_is_shown() -> None:
    folders = "/opt/apps/site/modules/2026/libraries:" * 10
    states = {
        rank: {"LD_LIBRARY_PATH": f"{folders}/scratch/job-{rank}:/usr/lib"} for rank in (0, 1)
    }
    states[2] = {"LD_LIBRARY_PATH": folders}

    (line,) = render_start(states, ()).splitlines()[1:]

    assert line.strip() == (
        "LD_LIBRARY_PATH: ...raries:/scratch/job-0:/usr/lib (rank 0); "
        "...raries:/scratch/job-1:/usr/lib (rank 1); ...ules/2026/libraries: (rank 2)"
    )


def test_many_differences_and_hostile_values_stay_short_and_harmless() -> None:
    states = {
        rank: {f"NCCL_{name:02}": f"\x1b[2J{rank}" + "x" * 5000 for name in range(30)}
        for rank in range(64)
    }
    lines = render_start(states, ()).splitlines()
    assert len(lines) == 12
    assert lines[-1].strip() == "and 20 more: the ranks' journals have all"
    assert all(len(line) < 600 and line.isprintable() for line in lines)
    assert lines[1].endswith("; 60 other values")


def test_a_cause_that_needs_no_more_words_gets_none() -> None:
    """Of files the summary says what a cause looks like in them."""
    judged = verdict("hang", cause="rendezvous", confidence=0.4, seen_in="files")
    assert verdict_text.reason(judged) == "rendezvous (confidence 0.40)"
