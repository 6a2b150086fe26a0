"""Sections, checkpoints, tracked loops and steps, as training scripts and simulations use them."""

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
    assert (save.number, save.step) == (1, None)
    (entry,) = [entry for entry in program.journal() if entry["kind"] == "saved"]
    assert save.at[:19] == entry["at"][:19]
    assert entry["seconds"] < 1.0


# Tracked loops and steps, as an agent or a simulation uses them.

EPISODES = """
import lightning_hangcheck as hc

def observations():
    yield from "abc"

got = []
for episode in hc.track(range(2), "episodes"):
    for observation in hc.track(observations(), "simulation"):
        with hc.step("get observation"):
            got.append(observation)
        hc.step("act")
        hc.step("learn")
assert got == list("abcabc"), got
for number in hc.track(range(9), "left early"):
    hc.step("look")
    if number == 2:
        break
try:
    for number in hc.track(observations(), "raising"):
        with hc.step("outer"), hc.step("inner"):
            raise ValueError("theirs")
except ValueError as error:
    assert str(error) == "theirs"
else:
    raise AssertionError("an exception was swallowed")

def failing():
    yield 1
    raise OSError("of the iterable")

try:
    list(hc.track(failing(), "failing"))
except OSError as error:
    assert str(error) == "of the iterable"
"""

SAID = """
import lightning_hangcheck as hc

class Unsayable:
    def __str__(self):
        raise ValueError("not that one")

for number in hc.track("abc", "agent"):
    with hc.step("tool", say=True, tool="check_storage", key="AKIAIOSFODNN7EXAMPLE") as tool:
        with hc.step("parse", say=True, text=Unsayable()):
            pass
        tool.add(free="3 GB\\nof 4")
    hc.step("quiet")
hc.step("alone", say=True)
hc.step("last", say=True)
"""


def _said(program: Program) -> list[str]:
    """What was said, without its times."""
    lines = [entry["text"] for entry in program.journal() if entry["kind"] == "said"]
    return [re.sub(r"<1 ms|[\d.]+ s\b", "N s", line) for line in lines]


def test_steps_that_are_asked_for_say_number_values_and_time(run: Callable[..., Program]) -> None:
    program = run(SAID)
    said = _said(program)
    assert said[:4] == [
        "step 1: calling tool, tool=check_storage, key=[redacted]",
        "step 1: calling parse, text=(cannot be shown)",
        "step 1: parse, text=(cannot be shown) returned (N s)",
        "step 1: tool, tool=check_storage, key=[redacted], free=3 GB of 4 returned (N s)",
    ]
    assert [line for line in said if "tool" in line and "step 3" in line]
    assert not [line for line in said if line.startswith(("agent 1", "step 1: quiet"))]
    assert said[-2:] == ["step 1: alone returned (N s)", "step 2: calling last"]  # and still open


def test_by_the_environment_every_step_and_item_is_said(run: Callable[..., Program]) -> None:
    said = _said(run(SAID, HANGCHECK_STEPS="1"))
    items = [line for line in said if line.startswith("agent ")]
    assert len(items) == 3
    assert all({"tool", "parse", "quiet"} <= set(line.replace(";", "").split()) for line in items)
    assert [line for line in said if line.startswith("agent: 3 items") and "tool 3x" in line]
    assert "step 2: quiet returned (N s)" in said


def test_loops_and_steps_are_counted_and_leave_nothing_open(run: Callable[..., Program]) -> None:
    program = run(EPISODES)
    assert program.process.returncode == 0, program.err
    assert program.troubles == []
    assert program.page().sections == ()
    assert program.page().beats > 0
    tracks = {entry["name"]: entry for entry in program.journal() if entry["kind"] == "track"}
    episodes = tracks["episodes"]
    counts = {name: times["count"] for name, times in episodes["steps"].items()}
    assert counts == {"simulation": 2, "get observation": 6, "act": 6, "learn": 6}
    assert (episodes["items"]["count"], episodes["whole"]) == (2, True)
    assert (tracks["left early"]["items"]["count"], tracks["left early"]["whole"]) == (3, False)
    assert tracks["left early"]["steps"]["look"]["count"] == 3
    assert set(tracks["raising"]["steps"]) == {"outer", "inner"}
    assert not tracks["failing"]["whole"]
    assert "simulation" not in tracks, "an inner loop has no line of its own"
    first = program.said[0]
    assert first.startswith("episodes: 2 items in ")
    assert "; get observation 6x, " in first
    assert not any(line.startswith("About to call") for line in program.said)


def test_switched_off_a_tracked_loop_is_the_bare_loop(run: Callable[..., Program]) -> None:
    program = run(EPISODES, HANGCHECK_DISABLE="1")
    assert program.process.returncode == 0, program.err
    assert (program.said, program.pages()) == ([], set())


def test_without_a_terminal_nothing_is_drawn(run: Callable[..., Program]) -> None:
    """A bar between log lines is noise."""
    program = run("import lightning_hangcheck as hc\nlist(hc.track(range(5), 'simulation'))")
    assert [line for line in program.err.splitlines() if line.strip()] == [
        line for line in program.err.splitlines() if "simulation: 5 items" in line
    ]
