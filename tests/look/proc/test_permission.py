"""Which processes may be read, with the way out; and the variables that they have now."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from lightning_hangcheck.look.proc import (
    explain,
    present_environment,
    read_environment,
)
from lightning_hangcheck.model.evidence import Gap

if TYPE_CHECKING:
    from processes import StartProgram


def access(**changes: Any) -> dict[str, Any]:
    return {"own_user": 1000, "their_user": 1000, "capable": False, "yama_scope": 0} | changes


@pytest.mark.parametrize(
    ("facts", "why", "remedy"),
    [
        (access(their_user=7), "belongs to user id 7, we are user id 1000", "run as that user"),
        (access(yama_scope=1), "only its ancestors", "kernel.yama.ptrace_scope=0"),
        (access(yama_scope=2), "wants CAP_SYS_PTRACE", "kernel.yama.ptrace_scope=1"),
        (access(yama_scope=3, capable=True), "nobody", "/etc/sysctl.d"),
        (access(own_user=0), "container", "--cap-add=SYS_PTRACE"),
        (access(own_user=0, their_user=7), "container", "--cap-add=SYS_PTRACE"),
        (access(), "protected", "run as root"),
    ],
)
def test_each_reason_comes_with_its_way_out(facts: dict[str, Any], why: str, remedy: str) -> None:
    refusal = explain(**facts)
    assert why in refusal.why
    assert remedy in refusal.remedy
    gap = Gap("stack of pid 7", 3, refusal.why, "stack", refusal.remedy)
    assert gap.reason == f"{refusal.why}; {refusal.remedy}"


def test_what_a_process_set_after_its_start_shows_and_what_it_took_away_does_not(
    program: StartProgram,
) -> None:
    """As an actor of Ray Train sets RANK and MASTER_ADDR."""
    running = program("numbered_late.py", TAKEN_AWAY="1")
    present, started = present_environment(running.pid), read_environment(running.pid)
    assert isinstance(present, dict)
    assert isinstance(started, dict)
    assert present == json.loads(running.first_words)
    assert ("RANK" in present, "RANK" in started) == (True, False)
    assert ("TAKEN_AWAY" in present, "TAKEN_AWAY" in started) == (False, True)


def test_an_environment_that_is_read_while_it_changes_is_one_that_was_there(
    program: StartProgram,
) -> None:
    running = program("numbered_late.py", "goes-on")
    for _ in range(50):
        present = present_environment(running.pid)
        if isinstance(present, dict):
            assert present["RANK"] == "3"
            assert present["LONG"] == "x" * 1000
