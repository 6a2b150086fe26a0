"""Numbers of collectives from the installed torch: they go on, also where Python cannot answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from processes import until

from lightning_hangcheck.look.flight_record import collective_numbers
from lightning_hangcheck.session.collectives.collective_notes import MessageCounter

if TYPE_CHECKING:
    from pathlib import Path

    from processes import StartProgram


@pytest.mark.real
@pytest.mark.parametrize("mode", [(), ("keep-lock",)])
def test_the_installed_torch_counts_what_was_entered_and_what_ended(
    mode: tuple[str, ...], program: StartProgram, tmp_path: Path
) -> None:
    """Gloo's two threads note ends in any order, each by its own number: the last one may stay."""
    path = tmp_path / "torch" / "socket"
    program("flight_recorded.py", str(path), "7", *mode)
    seven_entered_and_one_ended = [{(7, ended)} for ended in range(1, 8)]
    until(
        lambda: set(collective_numbers(path, 10.0).values()) in seven_entered_and_one_ended,
        "seven to be counted as entered, and an end",
    )


def test_a_rank_without_a_server_has_none(tmp_path: Path) -> None:
    assert collective_numbers(tmp_path / "socket", 1.0) == {}


def test_messages_that_a_rank_posts_count_as_they_are_posted(tmp_path: Path) -> None:
    server = tmp_path / "torch" / "4711"
    counter = MessageCounter(server)
    assert collective_numbers(server, 1.0) == {"messages": (0, 0)}
    counter.post_send(1)
    counter.post_send(3)
    counter.post_receive(1)
    assert collective_numbers(server, 1.0) == {"messages": (2, 1)}
