"""Programs with faults are made as their seeds say; and peers of a hang judge them."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from corpus.generator.composition import FAMILIES, PHASES
from corpus.generator.drawing import draw_programs, lay_out
from corpus.peers import registry
from corpus.peers.beside_table import render_side_by_side
from corpus.peers.comparing import Beside, of_ours, of_peer
from corpus.peers.registry import PEERS
from corpus.peers.transcript import Line, Transcript
from hangbench.bench import Truth, any_of, truth_of
from hangbench.scoring import Score
from msgspec import toml

from lightning_hangcheck.model.slugs import CAUSES, phase_of_name
from lightning_hangcheck.model.slugs import PHASES as SLUGS

if TYPE_CHECKING:
    from corpus.generator.writing import Program

DRAWN = draw_programs(11, 240, "both")

HANGING = [one for one in DRAWN if not one.truth.healthy]


def _functions(source: str) -> set[str]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)}


def test_the_same_seed_gives_the_same_programs_and_another_gives_others() -> None:
    again, other = draw_programs(11, 240, "both"), draw_programs(12, 240, "both")
    assert again == DRAWN
    assert {one.source for one in other}.isdisjoint(one.source for one in DRAWN)


def test_two_of_three_programs_hang() -> None:
    assert len(HANGING) == 160
    assert all(one.truth.healthy for one in draw_programs(11, 5, "healthy"))
    assert not any(one.truth.healthy for one in draw_programs(11, 5, "hanging"))


def test_every_mechanism_and_framework_comes_up() -> None:
    told = " ".join(one.composed for one in [*DRAWN, *draw_programs(13, 600, "hanging")])
    assert [m.name for family in FAMILIES.values() for m in family if m.name not in told] == []
    assert [framework for framework in PHASES if f"{framework}," not in told] == []


def test_every_composed_program_is_complete() -> None:
    for program in DRAWN:
        compile(program.source, program.name, "exec")
        assert not re.search(r"\$\w", program.source), program.name
        assert "hangcheck" not in program.source, program.name


def test_composed_truths_speak_the_contracts_words_of_functions_that_are_there() -> None:
    assert [one.name for one in HANGING if not _speaks_truly(one)] == []


def _speaks_truly(program: Program) -> bool:
    truth = program.truth
    several = any(len(any_of(one)) > 1 for one in (truth.verdict, truth.cause, truth.function))
    return (
        {*truth.culprits} <= {*range(truth.processes)}
        and {*any_of(truth.cause)} <= {*CAUSES}
        and {*any_of(truth.phase or [])} <= {*SLUGS}
        and bool(truth.phase or {"crashed", "dead"} & {*any_of(truth.verdict)})
        and {*any_of(truth.function)} <= _functions(program.source)
        and "mark_onset()" in program.source
        and bool(truth.because or not (several or truth.or_culprits))
    )


def test_the_name_of_a_faulty_function_says_no_phase() -> None:
    named = {name for one in HANGING for name in any_of(one.truth.function)}
    assert {name: phase_of_name(name) for name in named if phase_of_name(name)} == {}


def test_what_is_kept_can_be_read_again(tmp_path: Path) -> None:
    for program in DRAWN[:12]:
        script = lay_out(program, tmp_path)
        assert script.read_text(encoding="utf-8") == program.source
        assert toml.decode(script.with_suffix(".toml").read_bytes(), type=Truth) == program.truth


RECORDED = Path(registry.__file__).parent / "recorded"

ENDED = re.compile(r"exit code (-?\d+|None), ended at ([-+.\d]+)")


def _recorded(name: str) -> Transcript:
    """A recorded text: its end, then lines with seconds from the onset, then a stack dump."""
    first, *texts = (RECORDED / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    ended = ENDED.fullmatch(first)
    assert ended, first
    until = texts.index("stacks") if "stacks" in texts else len(texts)
    pairs = [text.partition(" ")[::2] for text in texts[:until]]
    return Transcript(
        lines=[Line(float(seconds), text) for seconds, text in pairs],
        exit_code=None if ended.group(1) == "None" else int(ended.group(1)),
        ended_s=float(ended.group(2)),
        onset_s=0.0,
        stacks="\n".join(texts[until:]),
    )


def _answer(recorded: str) -> Beside:
    peer, _, case = recorded.partition("-")
    transcript = _recorded(recorded)
    return of_peer(peer, case, truth_of(case), (transcript, PEERS[peer].hear(transcript)))


@pytest.mark.parametrize(
    ("recorded", "after_s", "right"),
    [
        ("torch-endless_loop", 25.0, {"culprits", "line"}),
        ("torch-child_fills_pipe", 25.0, {"culprits", "cause", "line"}),
        ("torch-barrier_in_rank_zero_callback", 25.0, {"line"}),
        ("torch-left_early", 25.0, {"culprits", "cause"}),
        ("torch-operations_in_different_order", 0.0, {"culprits", "cause"}),
        ("torchrun-raised", 0.0, {"culprits", "cause"}),
        ("nvrx-killed", 0.0, {"culprits", "cause"}),
    ],
)
def test_what_a_peer_tells_is_scored(recorded: str, after_s: float, right: set[str]) -> None:
    answer = _answer(recorded)
    assert answer.detected
    assert answer.after_s == pytest.approx(after_s, abs=0.2)
    assert {name for name in ("culprits", "cause", "line") if getattr(answer, name)} == right


@pytest.mark.parametrize("recorded", ["torchrun-stalled_in_own_code", "nvrx-stalled_in_own_code"])
def test_a_peer_that_waits_on_and_on_has_told_nothing(recorded: str) -> None:
    answer = _answer(recorded)
    assert (answer.detected, answer.culprits, answer.cause) == (False, False, False)
    assert answer.line is False
    assert answer.after_s is None


@pytest.mark.parametrize("peer", PEERS)
def test_a_healthy_run_without_a_report_is_no_false_alarm(peer: str) -> None:
    assert not _answer(f"{peer}-healthy_late_rank").false_alarm


@pytest.mark.parametrize("peer", PEERS)
def test_a_healthy_run_that_ends_as_a_failure_is_a_false_alarm(peer: str) -> None:
    transcript = Transcript(lines=[], exit_code=1, ended_s=30.0)
    heard = (transcript, PEERS[peer].hear(transcript))
    assert of_peer(peer, "healthy_late_rank", truth_of("healthy_late_rank"), heard).false_alarm


def test_the_table_puts_our_own_answers_first_and_counts_only_what_was_asked() -> None:
    ours = Score(
        name="killed", healthy=False, told=["crashed"], detected=True, alarm_after_s=1.5,
        culprits=True, cause=True,
    )  # fmt: skip
    healthy = Score(name="healthy_late_rank", healthy=True, told=["hang"])
    shown = render_side_by_side([of_ours(ours), of_ours(healthy), _answer("nvrx-killed")])
    assert re.search(r"\| +\| hangcheck +\| nvrx +\|", shown)
    assert re.search(r"\| line +\| 0 of 0 +\| 0 of 0 +\|", shown)
    assert re.search(r"\| false alarms +\| 1 of 1 +\| 0 of 0 +\|", shown)
    assert re.search(
        r"\| killed +\| 1\.5 s: culprits, cause +\| 0\.\d s: culprits, cause +\|", shown
    )
    assert re.search(r"\| healthy_late_rank +\| FALSE ALARM +\| +\|", shown)
