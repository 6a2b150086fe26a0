"""The job is over, or was asked to end: finished or crashed, and who failed or left first."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from cases import IN_ALL_REDUCE, IN_LOAD, NOW_NS, SECOND, SITE, agrees, gone, job, rank, torch
from msgspec.structs import replace

from lightning_hangcheck.judge import judge
from lightning_hangcheck.judge.joining import NodeCase, merge_cases
from lightning_hangcheck.judge.verdict import ended_well
from lightning_hangcheck.model.beat import Beat, OpenSection
from lightning_hangcheck.model.case import Aftermath, AskedEnd, Case, RankView, SilentNode
from lightning_hangcheck.model.evidence import Frame
from lightning_hangcheck.model.words import STARTING_SERVER

LOST_STORE = "DistNetworkError: Connection reset by peer"
LOST_PEER = "RuntimeError: [/src/third_party/gloo/gloo/transport/tcp/pair.cc:537] Connection closed"


def beaten(view: RankView, beat: Beat) -> RankView:
    return replace(view, beat=beat)


def raising(view: RankView, at_ns: int, *, last_beat_ns: int = 0) -> RankView:
    beat = Beat(pid=1, ending="raised", ended_ns=at_ns, last_beat_ns=last_beat_ns)
    return beaten(view, beat)


def member(view: RankView, ending: str = "running", at_ns: int = 0) -> RankView:
    return beaten(view, Beat(pid=1, membership="member", ending=ending, ended_ns=at_ns))


HANDLER = Frame(
    "_SignalConnector._sigterm_notifier_fn",
    f"{SITE}/lightning/pytorch/trainer/connectors/signal_connector.py",
    117,
)
ASKED = AskedEnd(by="SIGINT from the terminal")


def _with_memory_kills(view: RankView, kills: int, scope: str) -> RankView:
    seen = replace(view.process_exit, memory_kills=kills, memory_kills_scope=scope)
    return replace(view, process_exit=seen)


def _beside(number: int, at_s: float, words: str = "", code: int = 1) -> RankView:
    """A rank in an actor, which ends when who it serves ends it."""
    view = gone(number, code, order=number, words=words)
    ended = replace(view.process_exit, seen_ns=int(at_s * SECOND))
    beat = Beat(pid=1, training="beside", ending="raised" if words else "running")
    return replace(view, process_exit=ended, beat=beat)


LATE = 9_000_000_000
BAD = "ValueError: bad sample"
OVER: dict[str, Any] = {"ended": True, "exit_code": 1}
ENDS: dict[str, tuple[Case, dict[str, Any]]] = {
    "what fails after the end was asked for is no crash": (
        job(gone(0, 1, words="RuntimeError: x"), gone(1, -9, order=1), asked_end=ASKED, **OVER),
        {"verdict": "finished", "culprits": (),
         "says": "ended by SIGINT from the terminal; no rank failed"}),
    "a rank that had failed before is still blamed": (
        job(gone(0, -2, order=1), gone(1, 1, words=BAD),
            asked_end=AskedEnd(by="SIGINT from the terminal", failed_before=(1,)), **OVER),
        {"verdict": "crashed", "culprits": (1,)}),
    "who had left its groups is not blamed beside one that had not": (
        job(gone(0, 1, order=2, words=LOST_PEER), member(gone(1, 0, order=1)),
            beaten(gone(2, 0), Beat(pid=1, membership="left", ending="finished", ended_ns=1)),
            **OVER),
        {"culprits": (1,)}),
    "who raised first is first, though the launcher ended it on its way out": (
        job(raising(gone(0, 1, order=0, words="RuntimeError: closed by peer"), 200),
            raising(gone(1, -15, order=1, words=BAD), 100), **OVER),
        {"verdict": "crashed", "culprits": (1,), "now": "fix what rank 1 raised",
         "says": f"it raised {BAD}, and SIGTERM ended it on its way out"}),
    "whom the launcher ended on its way out, for it lost its peer, did not fail first": (
        job(raising(gone(0, -15, order=0, words="RuntimeError: closed by peer"), 100),
            gone(1, -9, order=1), **OVER),
        {"culprits": (1,), "says": "killed by SIGKILL"}),
    "who left before the first failed is told, where that failure is its own": (
        job(gone(0, 1, order=1, words=BAD), member(gone(1, 0, order=0)), **OVER),
        {"verdict": "crashed", "culprits": (0,),
         "says": f"{BAD}; rank 1 had exited cleanly before it"}),
    "Lightning's own word for SIGTERM is no failure": (
        job(gone(0, 1, order=0, words="SIGTERMException"), gone(1, 1, order=1), ended=True),
        {"culprits": (1,)}),
    "an exception that was caught long ago is none either": (
        job(raising(gone(0, 1, order=0, words="RuntimeError"), LATE - SECOND),
            raising(gone(1, -15, order=1, words="ValueError"), 100, last_beat_ns=LATE), **OVER),
        {"culprits": (0,)}),
    "the kernel's count of ends for want of memory is told with the killed rank": (
        job(gone(0, 1, order=1), _with_memory_kills(gone(1, -9), 1, "control group"), **OVER),
        {"culprits": (1,), "cause": "process_dead",
         "says": "SIGKILL (the kernel's out-of-memory killer ended a process of its control group"},
    ),
    "a command that was killed without a rank is told in words": (
        job(ended=True, exit_code=-9),
        {"verdict": "crashed", "culprits": (), "now": "killed for memory",
         "says": "exit code 137: killed by SIGKILL (usually the kernel"}),
    "actors that are ended together did not fail": (
        job(_beside(0, 10.0), _beside(1, 10.1)),
        {"verdict": "finished", "culprits": (),
         "says": "the job was ended by whom its processes serve (as actors serve Ray)"}),
    **{
        f"an actor that {how} is blamed, and the others are not": (
            job(_beside(0, 10.0), failed, _beside(2, 10.0)),
            {"verdict": "crashed", "culprits": (1,), "victims": (0, 2)},
        )
        for how, failed in {
            "crashed": _beside(1, 10.0, code=-11), "raised": _beside(1, 10.0, BAD)
        }.items()
    },
    "how the training ended in a process that goes on is told as it was": (
        job(beaten(gone(0, None, order=1), Beat(pid=2, training="over", ending="finished")),
            beaten(gone(1, None, words=BAD), Beat(pid=1, training="over", ending="raised",
                                                  ended_ns=5, last_beat_ns=5))),
        {"verdict": "crashed", "culprits": (1,), "says": f"rank 1 failed first: it raised {BAD}"}),
}  # fmt: skip


@pytest.mark.parametrize("name", ENDS)
def test_how_a_job_ended(name: str) -> None:
    case, expected = ENDS[name]
    agrees(judge(case), expected)


def test_what_became_of_a_hang_is_a_sentence_more_and_the_verdict_stays() -> None:
    hung = job(rank(0, IN_ALL_REDUCE, silent=40.0), rank(1, IN_LOAD, silent=40.0))
    before = judge(hung)
    after = Aftermath(after_s=60.0, text="the job was ended by SIGINT from the terminal")
    verdict = judge(replace(hung, aftermath=after))
    told = "60 s later the job was ended by SIGINT from the terminal"
    assert before.verdict == "hang"
    assert verdict.summary == f"{before.summary}; {told}"
    assert verdict.stalled_for_s == before.stalled_for_s + 60
    assert [item.text for item in verdict.evidence if item.kind == "ending"] == [told]
    same = ("culprits", "victims", "cause", "stalled_since", "ranks", "wait_for", "remedies")
    assert [getattr(verdict, name) for name in same] == [getattr(before, name) for name in same]


def test_a_job_whose_ranks_were_all_seen_to_leave_well_ended_well_though_a_hang_stood() -> None:
    assert ended_well(job(gone(0, 0), gone(1, 0), ended=True))
    assert ended_well(job(gone(0, 0), ended=True, exit_code=0, asked_end=ASKED))
    assert not ended_well(job(gone(0, -15), ended=True, exit_code=1, asked_end=ASKED))


def test_where_a_signals_handler_waits_for_others_no_line_of_the_users_is_blamed() -> None:
    """Lightning's broadcasts; of the others, who wait in native code, none can answer."""
    verdict = judge(job(rank(0, IN_ALL_REDUCE), rank(1, (*IN_LOAD, HANDLER, torch("broadcast")))))
    assert (verdict.verdict, verdict.culprits) == ("hang", (1,))
    assert verdict.summary.startswith(
        "the job was asked to end by SIGTERM to rank 1, but cannot: rank 1 waits in broadcast of "
        "the signal's handler"
    )
    (remedy,) = verdict.remedies
    assert "kill -KILL" in remedy.text
    assert "load" not in verdict.summary + remedy.text


@pytest.mark.parametrize("words", [LOST_STORE, LOST_PEER])
@pytest.mark.parametrize(("code", "order"), [(0, 0), (1, 0), (1, 2)])
def test_an_exception_that_wraps_the_loss_of_a_peer_points_to_who_went_first(
    words: str, code: int, order: int
) -> None:
    """Whether that one went with success, or failed; its process may have ended last."""
    first = raising(gone(0, 1, order=order, words="ValueError: 7 in load (data.py:4)"), 100)
    first = member(gone(0, 0, order=order)) if code == 0 else first
    wrapped = f"TrainingError: step 5 failed (from {words}) in fit (train.py:9)"
    ranks = first, raising(gone(1, 1, order=1, words=wrapped), 200)
    verdict = judge(job(*ranks, ended=True, exit_code=1))
    assert (verdict.verdict, verdict.culprits) == ("crashed", (0,))


# Who failed first.

FULL = (
    "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity "
    "of 24.00 GiB of which 1.50 GiB is free. {} in fit (train.py:9)"
)


@pytest.mark.parametrize(
    ("more", "kept"),
    [("", ""), ("and 3.00 GiB is reserved by PyTorch but unallocated.", "3.00 GiB were kept in")],
)
def test_a_full_gpu_has_remedies_of_its_own_and_memory_in_pieces_one_more(
    more: str, kept: str
) -> None:
    others = gone(1, 1, order=1, words="DistError: peer")
    verdict = judge(job(gone(0, 1, words=FULL.format(more)), others, ended=True, exit_code=1))
    assert (verdict.verdict, verdict.cause, verdict.culprits) == ("crashed", "process_dead", (0,))
    assert verdict.remedies[0].in_words.startswith("Reduce batch size")
    assert verdict.remedies[1].in_words.startswith(kept or "in generation: fewer tokens")
    assert any("PYTORCH_CUDA_ALLOC_CONF" in one.in_words for one in verdict.remedies) == bool(kept)


@pytest.mark.parametrize(
    ("function", "step", "phase"),
    [
        ("read_config", None, "startup"),
        ("read_config", 40, "training_step"),
        ("__getitem__", 40, "dataloading"),
        ("load_weights", None, "model_load"),
    ],
)
def test_where_an_exception_came_from_tells_place_and_phase_of_a_crash(
    function: str, step: int | None, phase: str
) -> None:
    """What was seen of the rank a second before it raised is older than its own last words."""
    words = f"FileNotFoundError: config.yaml in {function} (sub/train.py:6)"
    beat = Beat(pid=1, phase="startup", step=step, ending="raised", ended_ns=NOW_NS + SECOND)
    seen = gone(1, 1, order=0, words=words)
    failure = replace(rank(1, IN_LOAD), process_exit=seen.process_exit, beat=beat)
    verdict = judge(job(gone(0, -15, order=1), failure, ended=True, exit_code=1))
    assert (verdict.verdict, verdict.culprits, verdict.phase) == ("crashed", (1,), phase)
    assert f"exited with code 1: {words} (in phase {phase}); rank 0" in verdict.summary
    assert any("1 s before its last progress" in one.text for one in verdict.evidence)


@pytest.mark.parametrize("code", [-15, 143, -2])
def test_a_job_ended_from_outside_blames_no_rank(code: int) -> None:
    verdict = judge(job(gone(0, code), gone(1, code, order=1), ended=True, exit_code=1))
    assert (verdict.verdict, verdict.culprits, verdict.cause) == ("finished", (), None)
    name = signal.Signals(code % 128 if code > 0 else -code).name
    assert verdict.summary == f"the job was ended by {name} to rank 0; no rank failed by itself"


@pytest.mark.parametrize(
    ("section", "blamed"), [(STARTING_SERVER, True), ("init_process_group", False)]
)
def test_an_abort_while_our_server_starts_is_laid_to_it(section: str, blamed: bool) -> None:
    aborted = beaten(gone(1, -6, order=0), Beat(pid=1, sections=(OpenSection(section, 1),)))
    verdict = judge(job(gone(0, 1, order=1), aborted, ended=True, exit_code=1))
    assert (verdict.verdict, verdict.culprits, verdict.cause) == ("crashed", (1,), "process_dead")
    assert ("which lightning-hangcheck asks for" in verdict.summary) is blamed
    assert "gloo" not in verdict.summary


FACTS: dict[str, Any] = {"world_size": 2, "local_world_size": 1, "nnodes": 2, "ended": True}


def ended(view: RankView, node: int, seen_s: float) -> NodeCase:
    seen = replace(view.process_exit, seen_ns=NOW_NS + int(seen_s * SECOND))
    case = job(replace(view, process_exit=seen, host=f"node{node}"), **FACTS)
    return NodeCase(f"node {node}", case, met=True)


def whole(*nodes: NodeCase) -> Case:
    return replace(merge_cases(nodes, "whole"), ended=True, exit_code=1)


@pytest.mark.parametrize("later_s", [-1.5, 1.5])
def test_who_was_killed_is_named_and_not_who_lost_its_connection(later_s: float) -> None:
    """What another node saw may come a second late, or be told a second late."""
    here = ended(gone(0, 1, words=LOST_PEER), 0, 0.0)
    there = ended(gone(1, -9), 1, later_s)
    verdict = judge(whole(here, there))
    assert (verdict.verdict, verdict.culprits, verdict.victims) == ("crashed", (1,), (0,))
    assert verdict.summary.startswith("rank 1 failed first: it was killed by SIGKILL")


def test_a_node_that_was_lost_is_blamed_where_others_lost_their_peers() -> None:
    lost = replace(rank(1, IN_LOAD), unheard_for_s=4.0, processes=())
    node = SilentNode(number=1, ranks="1", silent_s=4.0)
    facts = {**FACTS, "local_world_size": 2, "silent_nodes": (node,)}
    verdict = judge(job(gone(0, 1, words=LOST_PEER), lost, exit_code=1, **facts))
    assert (verdict.verdict, verdict.culprits) == ("crashed", (1,))
    assert verdict.summary.startswith(
        "rank 1 was lost with node 1: nothing was heard from there for 4 s; rank 0 failed then"
    )


def test_where_nothing_is_known_of_other_nodes_nobody_is_blamed_for_losing_a_peer() -> None:
    verdict = judge(job(gone(0, 1, words=LOST_PEER), exit_code=1, **FACTS))
    assert (verdict.verdict, verdict.culprits) == ("crashed", ())
    assert "rank 0 failed because it lost a peer" in verdict.summary
    assert "for rank 1 see the other nodes' verdicts" in verdict.summary


def test_a_rank_that_fails_by_itself_is_blamed_whatever_is_not_known_of_others() -> None:
    verdict = judge(job(gone(0, 1, words="ValueError: bad batch"), exit_code=1, **FACTS))
    assert verdict.culprits == (0,)
