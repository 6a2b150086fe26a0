"""What is asked of ranks that are really started."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lightning_hangcheck.doctor.check import Check
from lightning_hangcheck.doctor.question import Question
from lightning_hangcheck.doctor.ranks.judging import START, judge_trial
from lightning_hangcheck.doctor.ranks.trial import trial_command, try_ranks

if TYPE_CHECKING:
    from lightning_hangcheck.doctor.subject import Subject

GROUP: Final = "ranks"


def ranks_reach_each_other(subject: Subject) -> tuple[Check, ...]:
    """Start a trial of ranks with the launcher of the run, which takes some seconds.

    Args:
        subject: The run; without a launcher there is nothing to try.
    """
    command = trial_command(subject.launch)
    if command is None:
        return ()
    try:
        return judge_trial(try_ranks(command, subject.environment))
    except OSError as error:
        sentence = f"{command[0]} cannot be started ({error.strerror})"
        return (Check(START, "failed", sentence, "pip install torch, or correct the command"),)


RANKS = (
    Question(
        GROUP,
        START,
        "a small program of ours in place of yours, started by the same launcher: rendezvous, a "
        "barrier, the sum of all_reduce, and every pair of ranks, on gloo and on NCCL",
        "ranks that cannot reach each other hang in their first collective, most often silently",
        ranks_reach_each_other,
        alone=True,
    ),
)
