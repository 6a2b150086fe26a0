"""What is said in a terminal: verdicts, plans, stragglers and the start."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cases import job
from constructed import FOLDER, running, suspect, verdict
from hangbench.recorded import case_of_program
from hypothesis import given, settings
from hypothesis import strategies as some
from msgspec.structs import replace
from planning.planned import machine, model, use
from processes import run_python

from lightning_hangcheck.cli.plan_command import render as render_plan
from lightning_hangcheck.cli.showing import coloured
from lightning_hangcheck.judge import judge
from lightning_hangcheck.model.beat import Beat, StepTimes
from lightning_hangcheck.model.case import RankView
from lightning_hangcheck.model.slugs import CAUSES
from lightning_hangcheck.model.verdict import EvidenceItem, Gap, RankState, Remedy
from lightning_hangcheck.planning.plan import read_phase
from lightning_hangcheck.planning.planner import make_plan
from lightning_hangcheck.report import verdict_text
from lightning_hangcheck.report.paragraphs import TABLE_WIDTH
from lightning_hangcheck.report.start_report import render_start
from lightning_hangcheck.report.stragglers import find_stragglers, stragglers_lines

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
@given(some.text(max_size=600))
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
    """It names the likeliest remedy."""
    line = "rank 3 is silent since 12 s in evaluate (train.py:120)"
    assert verdict_text.render_line(suspect()) == f"SUSPECT  {line}  (job blocked 12 s)"
    remedies = (Remedy("give it a time limit", "https://a"), Remedy("or not", "https://b"))
    assert verdict_text.render_short(replace(suspect(), remedies=remedies), FOLDER) == (
        f"SUSPECT  {line}  (job blocked 12 s); do: give it a time limit; run folder {FOLDER}"
    )


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
    assert run_python("-c", program).returncode == 0


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


def test_a_plan_tells_its_phases_and_a_foreign_name_is_only_shown() -> None:
    phases = (read_phase("rollout:context=8192,batch=2"), read_phase("train:optimizer=30"))
    hostile = model(model_type="evil\x1b[2J")
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
    assert [one.rank for one in found.ranks] == [2, 0, 1, 3]
    assert found.ranks[0].ratio == pytest.approx(2.5)
    assert stragglers_lines(found) == [
        "      steps    80 timed, 0.4 s each; slowest is rank 2: 0.3 s of its own, "
        "2.5 times the median rank's 0.12 s",
        "      where    rank 2: loader 0.2 s, forward 0.1 s, backward, optimizer and waiting "
        "0.1 s; median: loader 0.02 s, forward 0.1 s, backward, optimizer and waiting 0.28 s",
        "      trend    even: 0.4 s at first, 0.4 s in the end",
    ]


def test_nothing_is_said_of_few_steps_or_none() -> None:
    for few in (
        measured(0, sums(9, 1, 1, 1)),
        RankView(rank=0, beat=Beat(pid=1)),
        RankView(rank=0),
    ):
        assert find_stragglers(job(few)) is None
    assert find_stragglers(None) is None
    assert stragglers_lines(None) == []


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
