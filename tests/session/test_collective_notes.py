"""What a rank notes of its groups and messages, read by another process."""

from __future__ import annotations

import sys
from pathlib import Path

import lightning_hangcheck
from lightning_hangcheck.model.flight import MessageCounts
from lightning_hangcheck.session.collective_notes import (
    CallNoter,
    note_group,
    noted_groups,
    noted_messages,
    noted_sites,
    notes_file,
)


def test_members_of_groups_come_back(tmp_path: Path) -> None:
    server = tmp_path / "torch" / "4711"
    note_group(server, "0", range(3))
    note_group(server, "1", [0, 2])
    with notes_file(server, "groups").open("ab") as file:
        file.write(b'{"group":"2","ra')  # just being written
    assert noted_groups(server) == {"0": (0, 1, 2), "1": (0, 2)}
    assert noted_messages(server) == MessageCounts(), "who notes groups would note messages, too"
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
    ((_, site),) = noted_sites(tmp_path).items()
    assert (site.frames[-1].function, "ours" in str(site.frames)) == ("step", False)
