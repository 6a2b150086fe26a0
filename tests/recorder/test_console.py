"""The console line of the contract, and that it never holds anybody up."""

from __future__ import annotations

import os
import re
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as some

from lightning_hangcheck.identity import Identity
from lightning_hangcheck.recorder.announcer import format_line, name_rank

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Program

SPEAK = """
import lightning_hangcheck as hc
hc.checkpoint("Model created", number=5)
with hc.section("WandbLogger constructor"):
    pass
"""


def test_a_line_looks_as_the_contract_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    who = name_rank(Identity(rank=0, world_size=2, local_rank=0), 12345)
    line = format_line(1_700_000_025.1239, 2.4561, who, "CHECKPOINT 5: Model created")
    assert line == b"[22:13:45.123][+2.456s][R0/2][LR0][PID:12345] CHECKPOINT 5: Model created\n"


@given(some.text(max_size=6000))
def test_a_line_is_short_enough_to_be_written_whole(text: str) -> None:
    line = format_line(0.0, 0.0, "[R?/?][LR?][PID:7]", text)
    assert len(line) <= 4096
    assert line.endswith(b"\n")
    line.decode()


def test_a_program_says_its_checkpoints_and_sections(run: Callable[..., Program]) -> None:
    program = run(SPEAK, RANK="1", LOCAL_RANK="1")
    lines = program.err.splitlines()
    who = rf"\[R1/2\]\[LR1\]\[PID:{program.process.pid}\]"
    time_of = r"^\[\d\d:\d\d:\d\d\.\d{3}\]\[\+\d+\.\d{3}s\]"
    assert re.match(rf"{time_of}{who} CHECKPOINT 5: Model created$", lines[0])
    assert re.match(rf"{time_of}{who} About to call WandbLogger constructor\.\.\.$", lines[1])
    assert re.match(rf"{time_of}{who} WandbLogger constructor returned \(0\.00\ds\)$", lines[2])
    assert len(lines) == 3


@pytest.mark.parametrize(
    ("rank", "console", "speaks"),
    [
        ("0", None, True),
        ("5", None, False),
        ("5", "all", True),
        ("0", "off", False),
    ],
)
def test_above_16_ranks_only_rank_0_speaks_unless_asked(
    run: Callable[..., Program], rank: str, console: str | None, speaks: bool
) -> None:
    program = run(SPEAK, RANK=rank, WORLD_SIZE="17", LOCAL_RANK=rank, HANGCHECK_CONSOLE=console)
    assert bool(program.said) == speaks
    assert [entry["kind"] for entry in program.journal(f"rank-{rank}")] == [
        "start",
        "checkpoint",
        "section_begin",
        "section_end",
        "finished",
    ]


def test_a_rank_in_trouble_speaks_at_any_world_size(run: Callable[..., Program]) -> None:
    program = run(
        """
import lightning_hangcheck as hc
hc.checkpoint("quiet")
try:
    with hc.section("Trainer constructor"):
        raise ValueError("no such strategy")
except ValueError:
    hc.checkpoint("loud")
""",
        RANK="99",
        WORLD_SIZE="1024",
    )
    assert [re.sub(r"\d\.\d{3}s", "t", line) for line in program.said] == [
        "Trainer constructor raised ValueError: no such strategy (t)",
        "CHECKPOINT 2: loud",
    ]


def test_a_name_becomes_one_line_without_secrets(run: Callable[..., Program]) -> None:
    program = run(
        "import lightning_hangcheck as hc\n"
        "hc.checkpoint('a\\nb\\x1b[31m hf_abcdefghijklmnopqrstuv ' + 'x' * 9999)"
    )
    (line,) = program.said
    assert line.startswith("CHECKPOINT 1: a b\\x1b[31m [redacted] xxx")
    assert line.endswith("xxx...")
    assert len(program.err.splitlines()) == 1


def test_elapsed_time_counts_from_the_start_of_the_process(
    start: Callable[..., Program],
) -> None:
    before = time.monotonic()
    program = start(
        "import lightning_hangcheck as hc\n"
        "print('imported', flush=True)\ninput()\nhc.checkpoint('now')\n"
    )
    after = time.monotonic()
    assert program.hear() == "imported"
    at_least = time.monotonic() - after
    program.finish("go\n")
    at_most = time.monotonic() - before
    match = re.search(r"\[\+(\d+\.\d+)s\]", program.err)
    assert match
    tick = 0.011  # the kernel cuts the start to a tick of 10 ms
    assert at_least - tick <= float(match[1]) <= at_most + tick


@pytest.mark.usefixtures("unwatched")
def test_a_stderr_that_nobody_reads_does_not_block(start: Callable[..., Program]) -> None:
    program = start(
        "import lightning_hangcheck as hc\n"
        "for number in range(5000):\n    hc.checkpoint('x' * 100)\n"
        "print('through', flush=True)\n"
    )
    assert program.hear() == "through"  # its stderr holds 64 kB, unread
    program.finish()
    assert 100 < len(program.said) < 5000
    names = [entry["kind"] for entry in program.journal()]
    assert names.count("checkpoint") == 5000


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full"])
def test_a_closed_or_full_stderr_is_ignored(
    start: Callable[..., Program], redirection: str
) -> None:
    program = start(
        "import os, sys\n"
        f"os.execv('/bin/sh', ['sh', '-c', 'exec \"$0\" -c \"$1\" {redirection}', "
        "sys.executable, 'import lightning_hangcheck as hc; hc.checkpoint(1); print(2)'])"
    ).finish()
    assert (program.process.returncode, program.out) == (0, "2\n")


def test_lines_of_several_ranks_never_mix(start: Callable[..., Program]) -> None:
    """Each line is one write to the same pipe."""
    reader, writer = os.pipe()
    code = (
        "import os, lightning_hangcheck as hc\n"
        "input()\nfor number in range(200):\n    hc.checkpoint(os.environ['RANK'] * 150)\n"
    )
    programs = [start(code, stderr=writer, RANK=rank, LOCAL_RANK=rank) for rank in "01"]
    os.close(writer)
    for program in programs:
        program.tell("go\n")
    with os.fdopen(reader, "rb") as pipe:
        lines = pipe.read().decode().splitlines()
    whole = re.compile(r"\[[^]]+\]\[[^]]+\]\[R(\d)/2\]\[LR\1\]\[PID:\d+\] CHECKPOINT \d+: \1{150}")
    assert len(lines) > 200
    assert [line for line in lines if not whole.fullmatch(line)] == []
