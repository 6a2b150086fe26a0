"""Sections and checkpoints, as a training script uses them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Program


def without_times(lines: list[str]) -> list[str]:
    return [re.sub(r"\(\d+\.\d{3}s\)", "(t)", line) for line in lines]


def test_sections_nest_and_show_the_exception_that_leaves_them(run: Callable[..., Program]) -> None:
    program = run("""
import lightning_hangcheck as hc
with hc.section("Trainer constructor"):
    with hc.section("strategy"):
        pass
    with hc.section("WandbLogger constructor"):
        raise ValueError("no\\nproject, token=abc")
""")
    assert program.process.returncode == 1
    assert without_times(program.said) == [
        "About to call Trainer constructor...",
        "About to call strategy...",
        "strategy returned (t)",
        "About to call WandbLogger constructor...",
        "WandbLogger constructor raised ValueError: no project, token=[redacted] (t)",
        "Trainer constructor raised ValueError: no project, token=[redacted] (t)",
    ]
    page = program.page()
    assert page.sections == ()
    assert page.ending == "raised"
    kinds = [(entry["kind"], entry.get("name")) for entry in program.journal()]
    assert kinds == [
        ("start", None),
        ("section_begin", "Trainer constructor"),
        ("section_begin", "strategy"),
        ("section_end", "strategy"),
        ("section_begin", "WandbLogger constructor"),
        ("section_raised", "WandbLogger constructor"),
        ("section_raised", "Trainer constructor"),
        ("raised", None),
    ]


def test_the_page_shows_the_open_sections_of_all_threads(start: Callable[..., Program]) -> None:
    program = start("""
import threading
import lightning_hangcheck as hc
inside, leave = threading.Event(), threading.Event()
def other():
    with hc.section("load tokenizer"):
        inside.set()
        leave.wait()
with hc.section("Trainer constructor"):
    thread = threading.Thread(target=other)
    thread.start()
    inside.wait()
    with hc.section("strategy"):
        print("inside", flush=True)
        input()
        leave.set()
        thread.join()
    print("left", flush=True)
    input()
""")
    assert program.hear() == "inside"
    page = program.page()
    assert [section.name for section in page.sections] == [
        "Trainer constructor",
        "load tokenizer",
        "strategy",
    ]
    since = [section.since_ns for section in page.sections]
    assert since == sorted(since)
    assert page.phase == "trainer_init", "only sections of the main thread show the rank's phase"
    program.tell("\n")
    assert program.hear() == "left"
    assert [section.name for section in program.page().sections] == ["Trainer constructor"]
    program.finish("\n")
    assert program.page().phase == "startup"


def test_a_signal_handler_may_record_in_the_midst_of_recording(run: Callable[..., Program]) -> None:
    program = run("""
import signal
import lightning_hangcheck as hc
signal.signal(signal.SIGALRM, lambda *_: hc.checkpoint("alarm"))
signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
for _ in range(400):
    with hc.section("busy"):
        hc.beat()
signal.setitimer(signal.ITIMER_REAL, 0)
hc.checkpoint("through")
""")
    assert program.process.returncode == 0
    assert program.troubles == []
    numbers = [entry["number"] for entry in program.journal() if entry["kind"] == "checkpoint"]
    assert sorted(numbers) == list(range(1, len(numbers) + 1))
    assert program.page().sections == ()


def test_a_save_counts_once_when_its_outermost_section_ends_well(
    run: Callable[..., Program],
) -> None:
    """However short it was: nobody polls for it."""
    program = run("""
import lightning_hangcheck as hc
with hc.section("save checkpoint"):
    with hc.section("save the model's weights"):
        pass
try:
    with hc.section("save checkpoint"):
        raise OSError("disk full")
except OSError:
    pass
with hc.section("Datalogger save"):
    pass
""")
    save = program.page().save
    assert save is not None
    assert (save.number, save.step) == (1, None)
    (entry,) = [entry for entry in program.journal() if entry["kind"] == "saved"]
    assert save.at[:19] == entry["at"][:19]
    assert entry["seconds"] < 1.0
