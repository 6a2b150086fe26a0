"""In which order the evaluations of a training come: one after the other, none twice."""

from __future__ import annotations

from typing import Literal, TypeAlias

from lightning_hangcheck.errors import BadUsage

Step: TypeAlias = int | Literal["final"]


def check_step(step: Step) -> None:
    """Refuse what is no step.

    Raises:
        BadUsage: It is neither a number from 0 on nor ``"final"``.
    """
    is_number = isinstance(step, int) and not isinstance(step, bool) and step >= 0
    if not is_number and step != "final":
        raise BadUsage(f"step={step!r} is no step", 'write step=0, 1, 2... and step="final"')


class Turns:
    """The steps at which this process has evaluated under one name.

    Args:
        every: How many steps of training lie between two evaluations.
    """

    def __init__(self, every: int = 1) -> None:
        self.every = every
        self._taken: list[Step] = []

    def is_due(self, step: Step) -> bool:
        """Whether there is an evaluation at this step; there always is one at the end."""
        return step == "final" or step % self.every == 0

    def complaint(self, step: Step) -> str:
        """Why it is not the turn of this step, in words; empty if it is.

        The first step of a process may be any: a training that is resumed does not begin anew.
        """
        if not self._taken:
            return ""
        last = self._taken[-1]
        if step == last:
            return f"step {step} came again"
        if last == "final":
            return f"step {step} came after step final, which is the last of its name"
        if step == "final" or step == last + self.every:
            return ""
        if step < last:
            return f"step {step} came after step {last}, which is later"
        return f"step {step} came after step {last}, and {self._between(last, step)} left out"

    def take(self, step: Step) -> None:
        """Keep that the ranks evaluate at this step."""
        self._taken.append(step)

    def so_far(self, first: int | None) -> list[Step]:
        """The steps that there were, up to and with the newest.

        Args:
            first: The first of the training, where an earlier process took it.
        """
        numbers = [step for step in self._taken if step != "final"]
        if first is not None and numbers:
            numbers = list(range(first, numbers[-1] + 1, self.every))
        return [*numbers, *(step for step in self._taken[-1:] if step == "final")]

    def _between(self, last: int, step: int) -> str:
        missed = range(last + self.every, step, self.every)
        if len(missed) == 1:
            return f"step {missed[0]} is"
        by = f" (every {self.every})" if self.every > 1 else ""
        return f"steps {missed[0]}-{missed[-1]}{by} are"
