"""Text of foreign origin is readable, and does nothing."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as some

from lightning_hangcheck.text.shown import one_line, told_apart, visible, visible_json

texts = some.text(
    some.characters(categories=["L", "N", "P", "Z", "C"]) | some.sampled_from("\x1b\x9b\u202e\n\\")
)


@given(texts)
def test_nothing_is_left_that_a_terminal_obeys(text: str) -> None:
    assert visible(text).isprintable()
    assert one_line(text).isprintable()


@given(texts)
def test_what_is_visible_stays_as_it_is(text: str) -> None:
    once = visible(text)
    assert visible(once) == once
    assert (once == text) == text.isprintable()


def test_what_is_not_visible_is_shown_by_its_escape() -> None:
    text = "a\tb\x1b[31m\x07\x7f\x9b\u200b\u202e\u2066\ufeff\ud800 é 模 🙂"
    shown = r"a\tb\x1b[31m\x07\x7f\x9b\u200b\u202e\u2066\ufeff\ud800 é 模 🙂"
    assert visible(text) == shown
    assert one_line(f" {text}\r\n\n b ") == shown.replace(r"\t", " ") + " b"


@given(some.recursive(some.text() | texts.filter(str.isprintable), some.lists))
def test_json_decodes_to_the_same(value: object) -> None:
    for ensure_ascii in (True, False):
        data = json.dumps(value, ensure_ascii=ensure_ascii, indent=2)
        shown = visible_json(data.encode())
        assert json.loads(shown) == value
        assert all(line.isprintable() for line in shown.decode().split("\n"))


def test_texts_that_look_alike_once_they_are_cut_are_told_apart_by_their_lengths() -> None:
    """What each has in common with another is left out, which may leave the same of two."""
    ends = ["ab" * 300 + "1", "ab" * 300 + "2", "ab" * 60 + "2"]
    shown = told_apart(ends, 100)
    assert len(set(shown)) == 3
    assert shown[2].endswith("2 (121 characters)")
