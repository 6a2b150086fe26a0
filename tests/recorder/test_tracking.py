"""Tracked loops and steps, as an agent or a simulation uses them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Program


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
