"""A loop's functions are all met after a few looks; work that gets on calls others later."""

from __future__ import annotations

from msgspec.structs import replace

from lightning_hangcheck.model.evidence import Frame, ProcessStack, Sample, ThreadStack
from lightning_hangcheck.reading.activity.livelock import LOOKS, FunctionsMet

SECOND = 1_000_000_000
OURS = "/venv/lib/python3.11/site-packages/lightning_hangcheck/recorder/background.py"


def at(second: int, *functions: str, helper: str = "", helper_file: str = "work.py") -> Sample:
    """A look that finds the main thread in these functions, and another thread in one."""
    main = ThreadStack(tid=1, frames=tuple(Frame(name, "train.py", second) for name in functions))
    other = ThreadStack(tid=2, frames=(Frame(helper, helper_file, 1),) if helper else ())
    stack = ProcessStack(pid=1, source="py-spy", threads=(main, other))
    return Sample(taken_ns=second * SECOND, stack=stack)


def test_functions_are_new_once_whatever_their_lines() -> None:
    met = FunctionsMet()
    assert met.meet(at(2, "main", "crop"), 0, of_child=False)
    assert met.meet(at(3, "main", "crop", "random"), 2 * SECOND, of_child=False)
    assert not met.meet(at(4, "main", "crop"), 3 * SECOND, of_child=False)
    assert not met.meet(at(5, "main"), 3 * SECOND, of_child=False)


def test_several_lines_or_python_at_one_show_that_it_goes_round() -> None:
    met = FunctionsMet()
    met.meet(at(2, "main"), 0, of_child=False)
    assert not met.goes_round
    met.meet(at(2, "main"), 2 * SECOND, of_child=False)
    met.meet(at(3, "crop"), 2 * SECOND, of_child=True)
    assert not met.goes_round
    met.meet(at(4, "main"), 3 * SECOND, of_child=False)
    assert not met.goes_round  # the worker's function was new, so what was seen before is past
    met.meet(at(5, "main"), 3 * SECOND, of_child=False)
    assert met.goes_round
    met.meet(at(6, "main", "evaluate"), 3 * SECOND, of_child=False)
    assert not met.goes_round
    met.meet(in_python(at(7, "main", "evaluate")), 6 * SECOND, of_child=False)
    assert met.goes_round


def in_python(sample: Sample) -> Sample:
    assert sample.stack is not None
    main, *others = sample.stack.threads
    threads = (replace(main, owns_gil=True), *others)
    return replace(sample, stack=replace(sample.stack, threads=threads))


def test_all_threads_count_but_our_own() -> None:
    met = FunctionsMet()
    met.meet(at(2, "main"), 0, of_child=False)
    assert not met.meet(at(3, "main", helper="pulse", helper_file=OURS), 2 * SECOND, of_child=False)
    assert met.meet(at(4, "main", helper="compress"), 2 * SECOND, of_child=False)


def test_after_a_beat_all_is_new_again() -> None:
    met = FunctionsMet()
    met.meet(at(2, "main"), 0, of_child=False)
    assert met.meet(at(9, "main"), 8 * SECOND, of_child=False)


def test_a_look_without_stacks_shows_nothing_new() -> None:
    assert not FunctionsMet().meet(Sample(taken_ns=SECOND), 0, of_child=False)


def evaluating(second: int) -> Sample:
    return at(second, "main", "evaluate", f"forward_of_layer_{second % 12}")


def test_a_rank_that_repeats_much_may_do_it_to_new_data() -> None:
    met = FunctionsMet()
    for second in range(24):
        met.meet(evaluating(second), 0, of_child=False)
    assert met.meet(evaluating(24), 11 * SECOND, of_child=False)


def test_what_it_went_through_once_does_not_make_its_later_loop_larger() -> None:
    """Seen: a rank in a collective at the first look, then for ever with a worker that loops."""
    met = FunctionsMet()
    before = [f"function_{number}" for number in range(12)]
    met.meet(at(0, *before), 0, of_child=False)
    told = [met.meet(at(1 + one, "main", "poll"), 0, of_child=False) for one in range(LOOKS + 1)]
    assert told[1]
    assert not told[-1]


def test_a_worker_that_repeats_much_still_owes_one_batch() -> None:
    met = FunctionsMet()
    for second in range(24):
        met.meet(evaluating(second), 0, of_child=True)
    assert not met.meet(evaluating(24), 11 * SECOND, of_child=True)


def test_other_processes_and_failed_looks_make_no_loop_larger() -> None:
    met = FunctionsMet()
    loop = [f"function_{number}" for number in range(12)]
    met.meet(at(2, *loop), 0, of_child=False)
    met.meet(at(2, "child"), 2 * SECOND, of_child=True)
    met.meet(Sample(taken_ns=3 * SECOND), 2 * SECOND, of_child=False)
    assert not met.meet(at(4, *loop), 2 * SECOND, of_child=False)
