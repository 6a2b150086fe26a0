"""A loop that yields at each turn sleeps again and again; a computation never does."""

from __future__ import annotations

import pytest
from cases import IN_LOAD, SECOND, look
from msgspec.structs import replace

from lightning_hangcheck.model.evidence import Sample, WaitTarget
from lightning_hangcheck.reading.activity.livelock import FunctionsMet
from lightning_hangcheck.reading.activity.napping import naps

SLEEP = WaitTarget(call="clock_nanosleep", kind="time")
FOR_INTERPRETER_LOCK = WaitTarget(call="futex", kind="time")


def seen(second: int, turns: int | None, *waits_for: WaitTarget, helpers_s: float = 0.0) -> Sample:
    """A sample of a main thread with so many turns so far; helpers computed for so long."""
    (one,) = look(IN_LOAD, samples=1, turns=turns, waits_for=waits_for).samples
    assert one.kernel is not None
    kernel = replace(one.kernel, cpu_s=one.kernel.threads[0].cpu_s + helpers_s)
    return replace(one, taken_ns=second * SECOND, kernel=kernel)


@pytest.mark.parametrize(
    ("later", "napping"),
    [
        (seen(4, 100 + 40, SLEEP), True),
        (seen(4, 100 + 39, SLEEP), False),
        (seen(4, 9_000), False),
        (seen(4, 9_000, FOR_INTERPRETER_LOCK), False),
        (seen(4, None, SLEEP), False),
        (seen(4, 9_000, SLEEP, helpers_s=0.39), True),
        (seen(4, 9_000, SLEEP, helpers_s=0.4), False),
    ],
)
def test_naps_are_many_turns_of_a_thread_that_sleeps_while_no_helper_works(
    later: Sample, napping: bool
) -> None:
    assert naps(seen(2, 100), later) is napping


def test_whoever_naps_at_one_line_goes_round() -> None:
    met = FunctionsMet()
    met.meet(seen(2, 100, SLEEP), 0, of_child=False)
    met.meet(seen(3, 9_000), 2 * SECOND, of_child=False)
    assert not met.goes_round
    met.meet(seen(4, 18_000, SLEEP), 2 * SECOND, of_child=False)
    assert met.goes_round
