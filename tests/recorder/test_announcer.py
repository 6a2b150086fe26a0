"""Last words: which exception ended the rank, and where in the user's own code."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as some

from lightning_hangcheck.recorder.announcer import (
    LONGEST_LAST_WORDS,
    last_words,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Program


def test_an_uncaught_exception_is_the_last_word_and_is_still_printed(
    run: Callable[..., Program],
) -> None:
    program = run("""
import sys
def earlier_hook(kind, error, traceback):
    print("earlier hook:", error)
sys.excepthook = earlier_hook
import lightning_hangcheck as hc
hc.checkpoint("Script started")
def load_vocab():
    raise ValueError("no such split\\nsecond line, password=hunter2")
load_vocab()
""")
    assert program.process.returncode == 1
    assert program.out.startswith("earlier hook: no such split")
    page = program.page()
    assert page.ending == "raised"
    assert page.last_words == (
        "ValueError: no such split second line, password=[redacted] in load_vocab (train.py:9)"
    )
    assert program.journal()[-1]["last_words"] == page.last_words


def test_the_place_is_the_users_code_even_when_a_library_raised(
    run: Callable[..., Program],
) -> None:
    program = run("""
import json
import lightning_hangcheck as hc
hc.beat()
def read_config():
    with hc.section("config"):
        json.loads("{")
read_config()
""")
    words = program.page().last_words
    assert words.startswith("JSONDecodeError: Expecting property name")
    assert words.endswith("in read_config (train.py:7)")


@pytest.mark.parametrize(
    ("end", "code", "ending"),
    [
        ("sys.exit(3)", 3, "finished"),
        ("sys.exit('message')", 1, "finished"),
        ("pass", 0, "finished"),
        ("os.kill(os.getpid(), 2)", -2, "raised"),
        ("os._exit(4)", 4, "running"),
    ],
)
def test_how_a_program_ends_is_on_its_page(
    run: Callable[..., Program], end: str, code: int, ending: str
) -> None:
    program = run(f"import os, sys\nimport lightning_hangcheck as hc\nhc.beat()\n{end}\n")
    assert program.process.returncode == code
    assert program.page().ending == ending


def test_an_exception_of_a_stage_stays_unless_the_program_says_that_it_finished(
    run: Callable[..., Program],
) -> None:
    code = """
from lightning_hangcheck.recorder.lifecycle import current
try:
    1 / 0
except ZeroDivisionError as error:
    current().mark_raised(error)
"""
    page = run(code).page()
    assert (page.ending, page.last_words) == (
        "raised",
        "ZeroDivisionError: division by zero in <module> (train.py:4)",
    )
    assert run(code + "current().mark_finished()").page().ending == "finished"


HANDED_ON = """Caught {} in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py", line 374, in _worker_loop
    data = fetcher.fetch(index)
           ^^^^^^^^^^^^^^^^^^^^
  File "/home/ada/demo/data.py", line 17, in __getitem__
    return self.read(index)
  File "/usr/lib/python3.11/json/__init__.py", line 346, in loads
    return _default_decoder.decode(s)
{}
"""  # noqa: E501 - as torch 2.13 raises it


@pytest.mark.parametrize(
    "words", ["ValueError: image 40", "ValueError: first\nsecond", "ValueError"]
)
def test_what_a_worker_raised_is_told_by_its_own_words_and_place(words: str) -> None:
    """Torch raises it again in the rank, where no frame is left of it."""
    told = last_words(ValueError(HANDED_ON.format("ValueError", words)))
    place = "in __getitem__ (/home/ada/demo/data.py:17)"
    assert told == f"{words.replace(chr(10), ' ')} (in DataLoader worker process 0) {place}"


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("from error", " (from RuntimeError: [gloo/transport/pair.cc:5] closed by peer)"),
        ("", " (from RuntimeError: [gloo/transport/pair.cc:5] closed by peer)"),
        ("from None", ""),
    ],
)
def test_last_words_tell_what_an_exception_came_from(
    how: str, told: str, run: Callable[..., Program]
) -> None:
    program = run(f"""
import lightning_hangcheck as hc
hc.beat()
try:
    raise RuntimeError("[gloo/transport/pair.cc:5] closed by peer")
except RuntimeError as error:
    raise OSError("step 5 failed") {how}
""")
    assert program.page().last_words == f"OSError: step 5 failed{told} in <module> (train.py:7)"


@given(some.text(max_size=5000))
def test_last_words_are_one_line_of_at_most_300_characters_and_keep_the_place(text: str) -> None:
    try:
        json.loads(_raise(text))
    except ValueError as error:
        words = last_words(error)
    assert len(words) <= LONGEST_LAST_WORDS
    assert words.isprintable()
    assert words.startswith("ValueError")
    assert " in _raise (" in words
    assert "test_announcer.py:" in words


def _raise(text: str) -> str:
    raise ValueError(text)
