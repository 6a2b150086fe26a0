"""Evaluate on rank 0 in the midst of training; the others wait for it at a barrier with a name."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from lightning_hangcheck.errors import BadUsage, MeetingFailed, ResultsIncomplete, StepOutOfTurn
from lightning_hangcheck.hooks.evaluation.off_gpu import off_gpu as kept_off_gpu
from lightning_hangcheck.hooks.evaluation.results import complaints, expect
from lightning_hangcheck.hooks.evaluation.turns import Step, Turns, check_step
from lightning_hangcheck.hooks.guards.rank_zero_first import rank_zero_first
from lightning_hangcheck.hooks.rendezvous.peer_group import default_process_group, find_peer_group
from lightning_hangcheck.hooks.rendezvous.rendezvous import join_rendezvous
from lightning_hangcheck.hooks.wait_limit import check_limit
from lightning_hangcheck.identity import identify
from lightning_hangcheck.model.decoders import msgpack_decoder
from lightning_hangcheck.recorder.lifecycle import current
from lightning_hangcheck.recorder.sections import Section
from lightning_hangcheck.text.amounts import several

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import TypeAlias

    from lightning_hangcheck.hooks.evaluation.results import Expected
    from lightning_hangcheck.hooks.rendezvous.peer_group import PeerGroup
    from lightning_hangcheck.recorder.lifecycle import Recorder

    Held: TypeAlias = Any  # a module or an optimizer of torch

_turns: dict[tuple[str, int], Turns] = {}
"""Of each name and distance in this process: ranks walk the same evaluations in the same order."""


class Evaluation:
    """One evaluation, as the body of `rank_zero_evaluation` sees it.

    Attributes:
        step: At which it is.
        needed: Whether this rank is to evaluate now: rank 0, at a step at which one is due.
    """

    def __init__(self, step: Step, *, needed: bool) -> None:
        self.step = step
        self.needed = needed
        self.expected: list[Expected] = []

    def expect(
        self,
        path: str | os.PathLike[str],
        *,
        rows: int | None = None,
        columns: Iterable[str] = (),
    ) -> None:
        """Say what this evaluation leaves; it is looked at when the body ends.

        A file must be there, not be empty, and have been written since the evaluation began; a
        folder must hold something. Where ``{step}`` stands in the path, the files of all earlier
        steps must still be there too.

        Args:
            path: A file or folder, as ``"scores/step_{step}.csv"``.
            rows: How many a table has, without its head; by default any number but none.
            columns: That it has, in any order. Tables are .csv, .tsv, .jsonl and .json.

        Raises:
            BadUsage: Rows or columns are asked of what is no table.
        """
        self.expected.append(expect(path, rows, columns))


@contextmanager
def rank_zero_evaluation(
    step: Step,
    timeout: float,
    *,
    every: int = 1,
    first: int | None = None,
    name: str = "evaluation",
    off_gpu: Iterable[Held] = (),
) -> Iterator[Evaluation]:
    """Evaluate on rank 0 while the other ranks wait for it, for so long and no longer.

    Example:
        >>> with rank_zero_evaluation(step, timeout=1800.0, every=100) as evaluation:
        ...     if evaluation.needed:
        ...         simulate(model, f"scores/step_{step}.csv")
        ...         evaluation.expect("scores/step_{step}.csv", rows=200, columns=["name", "score"])

    Python cannot skip the body of a ``with``: ask `needed` in it. No collective call is made or
    left open, so the evaluation may take longer than the time limit of the process group. The steps
    must come in their turn: on all ranks the same one, none twice, none left out.

    Args:
        step: 0, 1, 2... or ``"final"``, at which there always is an evaluation.
        timeout: Seconds that ranks wait for each other before it, and then for rank 0.
        every: Steps between two evaluations; at others nobody waits and none is `needed`.
        first: The first step of the training, where an earlier process may have taken it: results
            are looked for from there on. By default from the first step of this process on.
        name: Where a training has several kinds, that of each.
        off_gpu: Models and optimizers that rank 0 moves off its GPU meanwhile.

    Raises:
        StepOutOfTurn: On every rank alike.
        MeetingFailed: On every rank alike: ranks are at different steps, did not come, or waited
            too long for rank 0; or the body failed there, or what it left is not as it should be.
            A process without peers raises its own error unchanged, `ResultsIncomplete` for results.
        BadUsage: An argument cannot be used.
    """
    check_limit("timeout", timeout)
    _check_numbers(step, every, first)
    turns = _turns.setdefault((name, every), Turns(every))
    if not turns.is_due(step):
        yield Evaluation(step, needed=False)
        return
    recorder = current()
    peers = find_peer_group(recorder)
    _agree(name, step, turns.complaint(step), timeout, peers)
    turns.take(step)
    title = f"{name} at step {step}"
    if not _is_rank_zero(peers):
        with Section(recorder, f"wait for rank 0: {title}"), rank_zero_first(title, timeout):
            pass
        yield Evaluation(step, needed=False)
        return
    with rank_zero_first(title, timeout), Section(recorder, title):
        yield from _evaluate(Evaluation(step, needed=True), turns, first, off_gpu, recorder)


def _evaluate(
    evaluation: Evaluation,
    turns: Turns,
    first: int | None,
    off_gpu: Iterable[Held],
    recorder: Recorder,
) -> Iterator[Evaluation]:
    held, begun_at = list(off_gpu), time.time()
    if held:
        with kept_off_gpu(held, recorder.say):
            yield evaluation
    else:
        yield evaluation
    so_far = turns.so_far(first)
    wrong = [
        one
        for expected in evaluation.expected
        for one in complaints(expected, evaluation.step, so_far, begun_at)
    ]
    if wrong:
        raise ResultsIncomplete(
            f"step {evaluation.step} did not leave what it should: {'; '.join(wrong)}",
            "see what the evaluation itself said, and evaluate these steps again",
        )
    if evaluation.expected:
        found = several(len(evaluation.expected), "result")
        recorder.say(f"{found} of step {evaluation.step} as expected; {_in_words(so_far)} there")


class _Arrival(msgspec.Struct, frozen=True):
    """What a rank brings: where it is, and why it is not the turn of that step, if so."""

    step: Step
    complaint: str = ""


def _agree(name: str, step: Step, complaint: str, timeout: float, peers: PeerGroup | None) -> None:
    """Let every rank know where all are. A rank that starts later knows of rank 0 only."""
    arrivals = {0: _Arrival(step, complaint)}
    if peers is not None:
        own = msgspec.msgpack.encode(arrivals[0])
        brought = join_rendezvous(f"begin {name}", timeout, own, peers) | {peers.index: own}
        arrivals = {rank: msgpack_decoder(_Arrival).decode(word) for rank, word in brought.items()}
    for rank, arrival in sorted(arrivals.items()):
        if arrival.complaint:
            where = f" (on rank {rank})" if len(arrivals) > 1 else ""
            raise StepOutOfTurn(
                f"{name}: {arrival.complaint}{where}",
                "call it with each step once, in order; say every=... where steps of training lie "
                "between two evaluations, and name=... where there are two kinds of them",
            )
    _check_same_step(name, {rank: arrival.step for rank, arrival in sorted(arrivals.items())})


def _check_same_step(name: str, steps: Mapping[int, Step]) -> None:
    if len(set(steps.values())) > 1:
        where = ", ".join(f"rank {rank} at step {step}" for rank, step in steps.items())
        raise MeetingFailed(
            f"the ranks came to {name} at different steps: {where}",
            "count steps alike on all ranks: a DataLoader that is shorter on one of them, or a "
            "step that one of them skips, parts them",
        )


def _check_numbers(step: Step, every: int, first: int | None) -> None:
    check_step(step)
    if not isinstance(every, int) or every < 1:
        raise BadUsage(f"every={every!r} is no whole number above 0", "write every=100")
    if first is not None:
        check_step(first)
        later = isinstance(step, int) and step % every == 0 and first > step
        if first % every or later:
            raise BadUsage(
                f"first={first} can be no first step: evaluations are every {every}, now at {step}",
                f"write first={every}, or leave it out",
            )


def _is_rank_zero(peers: PeerGroup | None) -> bool:
    """Also where nobody is met, as with HANGCHECK_DISABLE=1: the others need not evaluate then."""
    if peers is not None:
        return peers.index == 0
    group = default_process_group()
    return not (identify(os.environ).rank if group is None else group.rank)


def _in_words(steps: list[Step]) -> str:
    shown = ", ".join(str(step) for step in steps)
    return f"{'step' if len(steps) == 1 else 'steps'} {shown}"
