"""How peers are understood, on what they really printed (peers/recorded), and one real run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from corpus.peers import registry
from corpus.peers.beside_table import render_beside
from corpus.peers.comparing import Beside, of_ours, of_peer
from corpus.peers.registry import PEERS
from corpus.peers.transcript import Line, Transcript
from hangbench.bench import truth_of
from hangbench.scoring import Score

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
    shown = render_beside([of_ours(ours), of_ours(healthy), _answer("nvrx-killed")])
    assert re.search(r"\| +\| hangcheck +\| nvrx +\|", shown)
    assert re.search(r"\| line +\| 0 of 0 +\| 0 of 0 +\|", shown)
    assert re.search(r"\| false alarms +\| 1 of 1 +\| 0 of 0 +\|", shown)
    assert re.search(
        r"\| killed +\| 1\.5 s: culprits, cause +\| 0\.\d s: culprits, cause +\|", shown
    )
    assert re.search(r"\| healthy_late_rank +\| FALSE ALARM +\| +\|", shown)
