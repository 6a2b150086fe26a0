"""What is shown of the ranks' state at their start."""

from __future__ import annotations

from lightning_hangcheck.report.start_report import render_start

TOLD = {"versions": "python 3.11.7, torch 2.13.0", "CUDA": "12.6, not initialized"}
GROUP = {"process group": "nccl, 4 ranks", "backends": "gloo, nccl"}


def test_what_all_have_in_common_is_one_line() -> None:
    states = {rank: {**TOLD, **GROUP, "RANK": str(rank)} for rank in range(4)}
    assert render_start(states, ()) == (
        "STATE     4 ranks at the start: python 3.11.7, torch 2.13.0; CUDA: 12.6, not initialized; "
        "process group: nccl, 4 ranks; nothing differs"
    )


def test_what_differs_names_who_has_which_value() -> None:
    states = {rank: {**TOLD, "RANK": str(rank)} for rank in range(4)}
    states[2] = {**states[2], "NCCL_DEBUG": "INFO", "CUDA": "torch is built without it"}
    assert render_start(states, ()).splitlines() == [
        "STATE     4 ranks at the start: python 3.11.7, torch 2.13.0; what differs:",
        "          CUDA: 12.6, not initialized (rank 0-1,3); torch is built without it (rank 2)",
        "          NCCL_DEBUG: not set (rank 0-1,3); INFO (rank 2)",
    ]


def test_a_rank_that_has_said_nothing_is_named_and_compared_with_nobody() -> None:
    (line,) = render_start({0: TOLD, 3: TOLD}, [2, 1]).splitlines()
    assert line.endswith("; of rank 1-2 nothing is known yet; nothing differs")
    assert line.startswith("STATE     2 ranks at the start: ")


def test_of_long_values_that_look_alike_the_part_that_differs_is_shown() -> None:
    folders = "/opt/apps/site/modules/2026/libraries:" * 10
    states = {
        rank: {"LD_LIBRARY_PATH": f"{folders}/scratch/job-{rank}:/usr/lib"} for rank in (0, 1)
    }
    states[2] = {"LD_LIBRARY_PATH": folders}

    (line,) = render_start(states, ()).splitlines()[1:]

    assert line.strip() == (
        "LD_LIBRARY_PATH: ...raries:/scratch/job-0:/usr/lib (rank 0); "
        "...raries:/scratch/job-1:/usr/lib (rank 1); ...ules/2026/libraries: (rank 2)"
    )


def test_many_differences_and_hostile_values_stay_short_and_harmless() -> None:
    states = {
        rank: {f"NCCL_{name:02}": f"\x1b[2J{rank}" + "x" * 5000 for name in range(30)}
        for rank in range(64)
    }
    lines = render_start(states, ()).splitlines()
    assert len(lines) == 12
    assert lines[-1].strip() == "and 20 more: the ranks' journals have all"
    assert all(len(line) < 600 and line.isprintable() for line in lines)
    assert lines[1].endswith("; 60 other values")
