"""Dumps in the form of py-spy's own."""

from __future__ import annotations

from cases import IN_ALL_REDUCE, IN_LOAD, look, rank, user, with_lock_owner
from page_runs import case_of

from lightning_hangcheck.report.traces.stack_dumps import render_dumps


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
