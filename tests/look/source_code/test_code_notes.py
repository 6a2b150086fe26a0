"""What the source says around a line: tests of the rank, and loops."""

from __future__ import annotations

import ast
import os
import time
from typing import TYPE_CHECKING

import pytest

from lightning_hangcheck.look.source import Parsed, code_notes
from lightning_hangcheck.model.evidence import Frame

if TYPE_CHECKING:
    from pathlib import Path

SOURCE = """\
def save(trainer, rank):
    if trainer.is_global_zero:
        trainer.save_checkpoint("a")
    trainer.strategy.barrier()
    if dist.get_rank() != 0:
        return
    dist.barrier()

def train(batches, rank):
    for epoch in range(2):
        for batch in batches:
            step(batch)
        validate()
    while rank == 0:
        dist.barrier()
    if ranking > 3:
        dist.barrier()
    finish() if self.global_rank == 0 else None

if args.rank == 0:
    def inner():
        dist.barrier()
"""


@pytest.mark.parametrize(
    ("line", "condition", "condition_line"),
    [
        (3, "trainer.is_global_zero", 2),
        (4, "", 0),
        (7, "dist.get_rank() != 0", 5),
        (2, "", 0),
        (17, "", 0),
        (22, "", 0),
    ],
)
def test_a_test_of_the_rank_around_a_line_is_found(
    line: int, condition: str, condition_line: int
) -> None:
    note = Parsed(ast.parse(SOURCE)).note("train.py", line)
    assert (note.condition, note.condition_line) == (condition, condition_line)


@pytest.mark.parametrize(
    ("statement", "condition"),
    [
        ("generate(60 if rank == 0 else 40)", ""),
        ("generate(60) if rank == 0 else None", "rank == 0"),
        ("generate(load() if rank == 0 else None)", "rank == 0"),
        ("None if rank == 0 else generate(40)", ""),
        ("None if rank != 0 else generate(40)", "rank != 0"),
    ],
)
def test_a_value_that_depends_on_the_rank_is_no_test_around_the_call_that_takes_it(
    statement: str, condition: str
) -> None:
    assert Parsed(ast.parse(statement)).note("train.py", 1).condition == condition


@pytest.mark.parametrize(
    ("test", "of_most"),
    [
        ("rank != 0", True),
        ("not (rank == 1 and step == 4)", True),
        ("is_good(step)", True),
        ("rank == 0", False),
        ("rank < 3", False),
    ],
)
def test_a_test_that_all_ranks_but_one_pass_is_told_apart(test: str, of_most: bool) -> None:
    told = "def is_good(step):\n    return not (rank == 1 and step == 4)\n"
    tree = ast.parse(f"{told}if {test}:\n    step()\nelse:\n    stop()\n")
    here, otherwise = (Parsed(tree).note("train.py", line) for line in (4, 6))
    assert here.condition == test
    assert (here.condition_of_most, otherwise.condition_of_most) == (of_most, False)


@pytest.mark.parametrize(
    ("line", "loops"), [(12, ((10, 13), (11, 12))), (13, ((10, 13),)), (16, ()), (999, ())]
)
def test_the_loops_of_a_function_are_found_outermost_first(
    line: int, loops: tuple[tuple[int, int], ...]
) -> None:
    assert Parsed(ast.parse(SOURCE)).note("train.py", line).loops == loops


@pytest.mark.parametrize(
    ("over", "loops"),
    [
        ("loader", ((1, 4), (2, 3))),
        ("model.parameters()", ((1, 4),)),
        ("enumerate(net.named_buffers())", ((1, 4),)),
        ("optimizer.param_groups", ((1, 4),)),
    ],
)
def test_nobody_runs_out_of_the_parts_of_a_model(
    over: str, loops: tuple[tuple[int, int], ...]
) -> None:
    source = f"for step in steps:\n    for one in {over}:\n        reduce(one)\n    log()\n"
    assert Parsed(ast.parse(source)).note("train.py", 3).loops == loops


def test_files_that_are_not_what_runs_give_no_note(tmp_path: Path) -> None:
    good, broken, newer = (tmp_path / name for name in ("good.py", "broken.py", "newer.py"))
    for file in (good, newer):
        file.write_text(SOURCE)
    broken.write_text("if rank ==")
    now = time.time()
    os.utime(newer, (now + 60, now + 60))
    files = [str(one) for one in (good, broken, newer, tmp_path / "absent.py")]
    frames = [Frame("save", file, 3) for file in (*files, "<string>", "/usr/lib/python3.11/os.py")]
    (note,) = code_notes(frames, now + 1, 5.0)
    assert (note.file, note.condition) == (str(good), "trainer.is_global_zero")


@pytest.mark.parametrize("kind", ["fifo", "endless"])
def test_what_is_no_file_is_left_at_once(kind: str, tmp_path: Path) -> None:
    """A program may name any path as its source."""
    path = tmp_path / "source.py"
    os.mkfifo(path) if kind == "fifo" else path.symlink_to("/dev/zero")
    assert code_notes([Frame("f", str(path), 1)], time.time() + 1, 20.0) == ()


def test_the_brackets_around_a_test_are_in_no_branch() -> None:
    tree = ast.parse("if (\n    rank == 0\n):\n    save()")
    assert Parsed(tree).note("train.py", 1).branches == ()
    assert Parsed(tree).note("train.py", 3).branches == ()


STEPS = """\
def train(loader, r):
    for epoch in range(2):
        for batch in loader:
            warm(batch)
            with autocast():
                loss = net(batch)
                loss.backward()
            if r == 1:
                publish(loss)
            else:
                wait(loss)
        if epoch:
            validate()
    if late:
        loss.backward()
    save()
    for batch in loader:
        if batch:
            loss.backward()
        log(batch)

def train_step(batch):
    loss = net(batch)
    loss.backward()
    clip()

def main():
    load()
    for batch in loader:
        fetch(batch)
        loss = train_step(batch)
        sync(loss)
    export()
"""


def test_what_comes_in_a_pass_after_backward_is_known() -> None:
    tree = ast.parse(STEPS)
    after = [line for line in range(2, 35) if Parsed(tree).note("train.py", line).after_backward]
    assert after == [8, 9, 10, 11, 12, 13, 25, 32]
