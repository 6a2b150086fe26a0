"""What a rank notes of its groups and messages, read by another process."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

import lightning_hangcheck
from lightning_hangcheck.model.flight import MessageCounts
from lightning_hangcheck.session.collective_notes import (
    CALLS_KEPT,
    MOST_SITES,
    CallNoter,
    note_group,
    noted,
    notes_file,
)


def test_members_of_groups_come_back(tmp_path: Path) -> None:
    server = tmp_path / "torch" / "4711"
    note_group(server, "0", range(3))
    note_group(server, "1", [0, 2])
    with notes_file(server, "groups").open("ab") as file:
        file.write(b'{"group":"2","ra')  # just being written
    assert noted(server).groups == {"0": (0, 1, 2), "1": (0, 2)}
    assert noted(server).messages == MessageCounts(), "who notes groups would note messages, too"
    assert notes_file(server, "groups").stat().st_mode & 0o777 == 0o600


def test_a_call_from_another_package_of_the_same_environment_keeps_its_place(
    tmp_path: Path,
) -> None:
    """A user's package is installed beside this one; only frames of this one are left out."""
    here: dict[str, object] = {"note": CallNoter(tmp_path).note, "sys": sys}
    package = Path(lightning_hangcheck.__file__).parent
    for folder, name in ((package, "ours"), (package.parent / "users", "step")):
        source = f"def {name}(): note(sys._getframe())" if name == "ours" else "def step(): ours()"
        exec(compile(source, f"{folder}/code.py", "exec"), here)  # noqa: S102 - a stand-in for a file
    here["step"]()  # type: ignore[operator]
    (site,) = (one.called for one in noted(tmp_path).sites.values())
    assert (site.frames[-1].function, "ours" in str(site.frames)) == ("step", False)


def test_messages_count_for_good_and_apart_from_collectives(tmp_path: Path) -> None:
    """Also those that the ring has no more; the order is that of each thread."""
    noter, here = CallNoter(tmp_path / "7"), inspect.currentframe()
    for _ in range(CALLS_KEPT):
        noter.note(None, message=2)
    noter.note(here)
    for message in (-3, 2):
        noter.note(None, message=message)
    notes = noted(tmp_path / "7")
    assert notes.messages is not None
    assert (notes.messages.sent, notes.messages.received) == ({1: CALLS_KEPT + 1}, {2: 1})
    (order,) = notes.messages.newest
    assert (len(order), order[-3:]) == (CALLS_KEPT - 1, (2, -3, 2))
    assert [len(notes.calls), len(notes.sites)] == [1, 1]


def test_where_not_all_messages_could_be_counted_none_are(tmp_path: Path) -> None:
    noter = CallNoter(tmp_path / "7")
    for peer in range(MOST_SITES + 1):
        noter.note(None, message=peer + 1)
    assert noted(tmp_path / "7").messages is None
