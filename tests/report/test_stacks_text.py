"""stacks.txt holds what was sampled, and what could not be."""

from __future__ import annotations

import msgspec
from constructed import case

from lightning_hangcheck.model.case import RankView
from lightning_hangcheck.model.evidence import (
    Frame,
    Gap,
    ProcessLook,
    ProcessStack,
    ProcessState,
    Sample,
    ThreadStack,
    ThreadState,
)
from lightning_hangcheck.report.verdict_text import render_stacks

FRAMES = (Frame("<module>", "/home/ada/train.py", 140), Frame("load", "/home/ada/data.py", 41))
STACK = ProcessStack(
    pid=7, source="py-spy", threads=(ThreadStack(tid=7, name="MainThread", frames=FRAMES),)
)
KERNEL = ProcessState(
    pid=7,
    parent_pid=1,
    state="S",
    started_ticks=1,
    cpu_s=2.5,
    threads=(ThreadState(tid=7, state="S", cpu_s=2.5, wchan="futex_wait"),),
)


def test_a_sample_shows_kernel_and_frames_outermost_first() -> None:
    look = ProcessLook(
        pid=7, role="rank", samples=(Sample(taken_ns=-2 * 10**9, kernel=KERNEL, stack=STACK),)
    )
    text = render_stacks(case(RankView(rank=1, processes=(look,))))
    assert text.endswith(
        "rank 1 (pid 7), 1 sample\n"
        "  2.0 s before the end\n"
        "    kernel: state S, 2.50 s CPU, main thread in futex_wait\n"
        "    thread MainThread\n"
        "      <module> (/home/ada/train.py:140)\n"
        "      load (/home/ada/data.py:41)\n"
    )


def test_gaps_stand_at_the_end() -> None:
    whole = case(RankView(rank=1))
    gap = Gap("stack", 1, "py-spy timed out after 5 s")
    assert "not seen" not in render_stacks(whole)
    text = render_stacks(msgspec.structs.replace(whole, gaps=(gap,)))
    assert text.endswith("not seen\n  rank 1: stack: py-spy timed out after 5 s\n")
