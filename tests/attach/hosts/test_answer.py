"""A program that is heard within bounds of time and bytes, whatever it does."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import psutil
import pytest
from processes import end_by_pid, is_alive, until

from lightning_hangcheck.attach.hosts.answer import MOST_OUTPUT, NoAnswer, answer_of

if TYPE_CHECKING:
    from pathlib import Path

LIMIT_S = 30.0
NEVER = threading.Event()


def shell(script: str) -> list[str]:
    return ["sh", "-c", script]


def test_all_that_it_wrote_and_how_it_ended() -> None:
    answer = answer_of(shell("echo out; echo err >&2; exit 4"), LIMIT_S, NEVER)
    assert (answer.output, answer.complaint, answer.exit_code) == (b"out\n", b"err\n", 4)


@pytest.mark.parametrize(("to", "limit"), [("", "32 MiB"), (" >&2", "1 MiB")])
def test_one_that_writes_without_end_is_left_at_the_limit(to: str, limit: str) -> None:
    with pytest.raises(NoAnswer, match=f"it sent more than {limit}"):
        answer_of(shell(f"exec yes{to}"), LIMIT_S, NEVER)


def test_what_is_just_within_the_limit_is_heard() -> None:
    answer = answer_of(shell(f"head -c {MOST_OUTPUT} /dev/zero"), LIMIT_S, NEVER)
    assert len(answer.output) == MOST_OUTPUT


def test_one_that_takes_too_long_ends_with_all_that_it_started(tmp_path: Path) -> None:
    noted = tmp_path / "pid"
    script = f"sleep 1000 & echo $! > {noted}; wait"
    with pytest.raises(NoAnswer, match=r"no answer within 1 s"):
        answer_of(shell(script), 1.0, NEVER)
    try:
        child = psutil.Process(int(noted.read_text()))
    except psutil.NoSuchProcess:
        return
    until(lambda: not is_alive(child), "its child to end")


def test_a_helper_in_the_background_that_keeps_the_outputs_open_is_not_waited_for(
    tmp_path: Path,
) -> None:
    """As ssh's master connection does."""
    noted = tmp_path / "pid"
    helper = f"setsid sh -c 'echo $$ > {noted}; exec sleep 1000' &"
    seen = f"until [ -s {noted} ]; do sleep 0.01; done"
    answer = answer_of(shell(f"{helper} {seen}; echo out"), LIMIT_S, NEVER)
    left = psutil.Process(int(noted.read_text()))
    assert is_alive(left), "it is nobody's to end"
    end_by_pid([left])
    assert answer.output == b"out\n"


def test_one_that_nobody_wants_to_hear_any_more_ends_at_once() -> None:
    given_up = threading.Event()
    given_up.set()
    with pytest.raises(NoAnswer, match="interrupted"):
        answer_of(shell("exec sleep 1000"), LIMIT_S, given_up)
