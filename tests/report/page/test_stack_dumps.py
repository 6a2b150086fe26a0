"""Dumps in the form of py-spy's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from cases import (
    IN_ALL_REDUCE,
    IN_LOAD,
    SITE,
    STDLIB,
    beside,
    look,
    rank,
    user,
    with_lock_owner,
    with_threads,
)
from page_runs import case_of, written

from lightning_hangcheck.judge import judge
from lightning_hangcheck.model.codec import encode_pretty
from lightning_hangcheck.model.evidence import Frame, ThreadStack
from lightning_hangcheck.report.page.forms import Form
from lightning_hangcheck.report.traces.stack_dumps import render_dumps
from lightning_hangcheck.report.verdict_text import terminal
from lightning_hangcheck.report.verdict_text.stacks_text import render_stacks

if TYPE_CHECKING:
    from pathlib import Path


def test_a_file_a_process_with_each_sample_as_taken() -> None:
    worker = look((user("Samples.__getitem__", 17, "data.py"),), pid=900, role="worker", index=1)
    view = rank(0, IN_LOAD, IN_LOAD[:1], children=[worker])
    dumps = render_dumps(case_of(view, rank(1, IN_ALL_REDUCE)))
    assert list(dumps) == ["rank-0.txt", "rank-0-worker-1.txt", "rank-1.txt"]
    assert dumps["rank-0.txt"] == (
        "Process 100: torchrun train.py\n"
        "Taken 2026-11-20T10:24:14.900Z by py-spy\n"
        "\n"
        "Thread 100 (idle)\n"
        "    load (/home/ada/demo/train.py:41)\n"
        "    <module> (/home/ada/demo/train.py:140)\n"
        "\n"
        "Process 100: torchrun train.py\n"
        "Taken 2026-11-20T10:24:16.000Z by py-spy\n"
        "\n"
        "Thread 100 (idle)\n"
        "    <module> (/home/ada/demo/train.py:140)\n"
        "\n"
    )


def test_who_holds_the_interpreter_lock_is_marked() -> None:
    (dump,) = render_dumps(case_of(with_lock_owner(rank(0, IN_LOAD)))).values()
    assert dump.count("Thread 100 (idle+gil)\n") == 3


def test_a_hostile_name_is_harmless() -> None:
    (dump,) = render_dumps(case_of(rank(0, (user("\x1b[2J\n\u202e", 3),)), command="\x07")).values()
    assert all(sign.isprintable() or sign == "\n" for sign in dump)
    assert r"    \x1b[2J\n\u202e (" in dump


def test_calls_and_threads_of_our_own_are_shown_nowhere(tmp_path: Path) -> None:
    ours = f"{SITE}/lightning_hangcheck"
    wrapper = (
        Frame("FunctionWrapper.__call__", f"{SITE}/wrapt/wrappers.py", 601),
        Frame("act_before.<locals>.call", f"{ours}/hooks/zero_code/wrapping.py", 102),
    )
    bootstrap = Frame("Thread.run", f"{STDLIB}/threading.py", 982)
    journal = (bootstrap, Frame("JournalWriter._run", f"{ours}/recorder/journal_writer.py", 134))
    entered = Frame("_GeneratorContextManager.__enter__", f"{STDLIB}/contextlib.py", 137)
    in_guard = (*IN_LOAD, entered, Frame("wait", f"{ours}/hooks/places.py", 133))
    case = case_of(
        with_threads(rank(0, in_guard), ThreadStack(tid=201, name="their", frames=(bootstrap,))),
        beside(rank(1, (*IN_ALL_REDUCE[:2], *wrapper, IN_ALL_REDUCE[2])), journal),
    )
    verdict = judge(case)

    shown = [
        encode_pretty(verdict).decode(),
        terminal.render(case, verdict, "run"),
        render_stacks(case),
        *render_dumps(case).values(),
        *(written(tmp_path / form, case, form=form) for form in get_args(Form)),
    ]

    for text in shown:
        assert "act_before" not in text
        assert "JournalWriter" not in text
        assert "rendezvous.py" not in text
        assert "wrapt" not in text
        assert "contextlib" not in text
    assert "demo/train.py:90" in shown[1]
    assert "thread their" in render_stacks(case)
    assert "thread helper" not in render_stacks(case)
