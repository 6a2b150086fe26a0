"""Files as a tree."""

from __future__ import annotations

from lightning_hangcheck.doctor.storing import MOST_LINES, tree


def test_folders_come_with_what_is_in_them() -> None:
    lines = tree({"step_1/model.pt": 3_000_000, "step_1/more/x": 5, "last.ckpt": 7})
    assert [line.split() for line in lines] == [
        ["last.ckpt", "7", "B"],
        ["step_1/", "2", "files,", "3.0", "MB"],
        ["model.pt", "3.0", "MB"],
        ["more/", "1", "file,", "5", "B"],
        ["x", "5", "B"],
    ]
    assert [len(line) - len(line.lstrip()) for line in lines] == [0, 0, 2, 2, 4]


def test_steps_stand_in_the_order_of_their_numbers_and_the_newest_is_shown() -> None:
    lines = tree({f"step_{number}.pt": 1 for number in range(1, 101)})
    assert [line.split()[0] for line in lines[:5]] == [f"step_{one}.pt" for one in range(1, 6)]
    assert lines[5] == "... 94 more"
    assert lines[6].startswith("step_100.pt")


def test_a_tree_has_an_end() -> None:
    files = {f"{a}/{b}/{c}": 1 for a in range(6) for b in range(6) for c in range(6)}
    lines = tree(files)
    assert len(lines) == MOST_LINES + 1
    assert lines[-1] == "... 228 more lines"


def test_nothing_gives_nothing() -> None:
    assert tree({}) == ()


def test_names_of_every_kind_can_be_ordered() -> None:
    assert len(tree({"1": 1, "a1": 1, "a": 1, "1a": 1, "\u0661": 1, "": 1})) == 6
