"""The console line of the contract, last words, and that nothing of it holds anybody up."""

from __future__ import annotations

import os
import re
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as some

import lightning_hangcheck
from lightning_hangcheck.recorder.announcer import format_line, last_words

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Program

SPEAK = """
import lightning_hangcheck as hc
hc.checkpoint("Model created", number=5)
with hc.section("WandbLogger constructor"):
    pass
"""


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
    [("0", None, True), ("5", None, False), ("5", "all", True), ("0", "off", False)],
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


def test_elapsed_time_counts_from_the_start_of_the_process(start: Callable[..., Program]) -> None:
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


def test_an_uncaught_exception_is_the_last_word_and_is_still_printed(
    run: Callable[..., Program],
) -> None:
    program = run("""
import sys
def earlier_hook(kind, error, traceback):
    print("earlier hook:", error)
sys.excepthook = earlier_hook
import lightning_hangcheck as hc
hc.checkpoint("Script started")
def load_vocab():
    raise ValueError("no such split\\nsecond line, password=hunter2")
load_vocab()
""")
    assert program.process.returncode == 1
    assert program.out.startswith("earlier hook: no such split")
    page = program.page()
    assert page.ending == "raised"
    assert page.last_words == (
        "ValueError: no such split second line, password=[redacted] in load_vocab (train.py:9)"
    )
    assert program.journal()[-1]["last_words"] == page.last_words


def test_the_exception_that_ended_a_thread_is_on_the_page_and_is_still_printed(
    run: Callable[..., Program],
) -> None:
    program = run("""
import threading
import lightning_hangcheck as hc
hc.checkpoint("Script started")
def fill():
    raise ValueError("no such shard")
def leave():
    raise SystemExit(1)
for name, work in (("prefetch", fill), ("leaver", leave)):
    thread = threading.Thread(target=work, name=name)
    thread.start()
    thread.join()
""")
    assert "Exception in thread prefetch:" in program.err
    page = program.page()
    assert page.thread_error == "prefetch: ValueError: no such shard in fill (train.py:6)"
    assert page.ending == "finished"


@pytest.mark.parametrize(
    ("end", "code", "ending"),
    [
        ("sys.exit(3)", 3, "finished"),
        ("os.kill(os.getpid(), 2)", -2, "raised"),
        ("os._exit(4)", 4, "running"),
        ("current().mark_raised(ValueError('of a stage'))", 0, "raised"),
        ("current().mark_raised(ValueError('caught')); current().mark_finished()", 0, "finished"),
    ],
)
def test_how_a_program_ends_is_on_its_page(
    run: Callable[..., Program], end: str, code: int, ending: str
) -> None:
    recorder = "from lightning_hangcheck.recorder.lifecycle import current"
    program = run(f"import os, sys\n{recorder}\ncurrent()\n{end}\n")
    assert program.process.returncode == code
    assert program.page().ending == ending


HANDED_ON = """Caught ValueError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py", line 374, in _worker_loop
    data = fetcher.fetch(index)
           ^^^^^^^^^^^^^^^^^^^^
  File "/home/ada/demo/data.py", line 17, in __getitem__
    return self.read(index)
  File "/usr/lib/python3.11/json/__init__.py", line 346, in loads
    return _default_decoder.decode(s)
ValueError: image 40
"""  # noqa: E501 - as torch 2.13 raises it


def test_what_a_worker_raised_is_told_by_its_own_words_and_place() -> None:
    """Torch raises it again in the rank, where no frame is left of it."""
    told = last_words(ValueError(HANDED_ON))
    place = "in __getitem__ (/home/ada/demo/data.py:17)"
    assert told == f"ValueError: image 40 (in DataLoader worker process 0) {place}"


HEAVY = ("torch", "lightning", "pytorch_lightning", "wandb", "transformers", "rich", "psutil")


def test_an_import_loads_nothing_heavy_and_leaves_no_trace(run: Callable[..., Program]) -> None:
    program = run(
        "import os, sys, threading\n"
        "def loaded(*names):\n"
        "    return [name for name in sys.modules if name.partition('.')[0] in names]\n"
        "before = (sys.excepthook, dict(os.environ))\n"
        "import lightning_hangcheck as hc\n"
        "print(before == (sys.excepthook, dict(os.environ)), threading.active_count())\n"
        f"print(loaded(*{HEAVY}, 'networkx', 'multiprocessing', 'ctypes', 'msgspec'))\n"
        f"hc.checkpoint('x')\nprint(loaded(*{HEAVY}))\n"
    )
    assert program.out == "True 1\n[]\n[]\n"


def test_the_public_names_are_those_of_the_contract() -> None:
    frozen = (
        "HangCheck HuggingFaceHangCheck __version__ barrier beat checkpoint gradient_accumulation "
        "guarded_wandb_logger locked make_directory phase rank_zero_evaluation rank_zero_first "
        "report_state section step track"
    )
    assert lightning_hangcheck.__all__ == frozen.split()
    assert set(lightning_hangcheck.__all__) <= set(dir(lightning_hangcheck))


def test_beat_taken_before_recording_begins_works_then(run: Callable[..., Program]) -> None:
    program = run(
        "from lightning_hangcheck import beat, checkpoint\n"
        "beat()\nbeat()\ncheckpoint('x')\nbeat()\n"
    )
    assert program.page().beats == 3
