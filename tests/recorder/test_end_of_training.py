"""How training ends in a thread whose process goes on, as an actor of Ray Train does."""

from __future__ import annotations

import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from long_tests import WHEN_ASKED_FOR
from processes import PROGRAMS, until

from lightning_hangcheck.model.beat import Beat
from lightning_hangcheck.recorder.page import PageReader
from lightning_hangcheck.recorder.process import TrainingEnd, TrainingThread

if TYPE_CHECKING:
    from pathlib import Path
    from types import FrameType

    from processes import RunningProgram, StartProgram

    from lightning_hangcheck.model.evidence import Frame

ACTOR = PROGRAMS / "site-packages" / "serving_actor.py"


class Ran:
    """A call that has ended."""

    def __init__(self, way: str) -> None:
        self.call: FrameType | None = None
        with suppress(ValueError):
            self.train(way)

    def train(self, way: str) -> str | None:
        self.call = sys._getframe()  # noqa: SLF001 - as the program itself does
        try:
            int("no number")
        except ValueError:
            if way == "translates":
                raise ValueError("translated") from None
            if way == "raises again":
                raise
        if way == "raises":
            fail()
        for one in ("returns inside",):
            if way == one:
                return one
        return way if way == "returns" else None

    def end(self) -> tuple[bool, Frame]:
        assert self.call is not None
        told: list[tuple[bool, Frame]] = []
        TrainingEnd(self.call, lambda *end: told.append(end))
        return told[0]


def fail() -> None:
    raise ValueError("no such split")


@pytest.mark.parametrize("way", ["returns", "returns inside", "falls off its end"])
def test_a_call_that_returned_ended_well(way: str) -> None:
    assert Ran(way).end()[0]


@pytest.mark.parametrize("way", ["raises", "translates", "raises again"])
def test_a_call_that_an_exception_left_is_known_with_its_place(way: str) -> None:
    well, left_at = Ran(way).end()
    assert (well, left_at.function) == (False, "train")


def test_in_a_program_that_trains_in_its_main_thread_no_other_one_does() -> None:
    training = TrainingThread(lambda *_: None)
    heard: list[bool] = []
    other = threading.Thread(target=lambda: heard.append(training.is_here()))
    other.start()
    other.join()
    assert training.is_here()
    assert heard == [False]
    assert not training.goes_on_beside


def page_of(running: RunningProgram, session: Path) -> Beat:
    reader = PageReader(session / "pages" / f"{running.pid}.page")
    page = reader.read()
    reader.close()
    assert isinstance(page, Beat), page
    return page


@pytest.mark.real
@pytest.mark.parametrize(
    ("function", "ending", "words"),
    [
        pytest.param("return_well", "finished", "", marks=WHEN_ASKED_FOR),
        ("raise_within", "raised", "an exception that left raise_within ("),
    ],
)
def test_the_end_of_the_training_is_told_while_its_process_goes_on(
    function: str, ending: str, words: str, program: StartProgram, tmp_path: Path
) -> None:
    running = program(
        ACTOR, "training_in_thread", function, HANGCHECK_RUN_DIR=str(tmp_path / "run")
    )
    session = tmp_path / running.first_words
    assert page_of(running, session).training == "beside"
    running.tell("")
    told = until(lambda: (page := page_of(running, session)).training == "over" and page, "its end")
    assert isinstance(told, Beat)
    assert told.ending == ending
    assert words in told.last_words
    assert running.process.poll() is None


@WHEN_ASKED_FOR
@pytest.mark.real
def test_a_process_that_is_ended_while_it_trains_has_not_finished(
    program: StartProgram, tmp_path: Path
) -> None:
    """Its exit handlers run in the main thread, which only served."""
    folder = str(tmp_path / "run")
    running = program(ACTOR, "training_in_thread", "train_on", "obey", HANGCHECK_RUN_DIR=folder)
    kept = PageReader(tmp_path / running.first_words / "pages" / f"{running.pid}.page")
    assert isinstance(kept.read(), Beat)
    running.tell("")
    running.process.wait(120)
    page = kept.read()
    kept.close()
    assert isinstance(page, Beat)
    assert (page.training, page.ending) == ("beside", "running")
