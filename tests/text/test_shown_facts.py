"""Facts as they are shown, and text of others made safe to show."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as some
from processes import PATIENCE_S, PROGRAMS

from lightning_hangcheck.cli.main import invoke
from lightning_hangcheck.text.shown import (
    LARGEST_RANK,
    format_ranks,
    one_line,
    parse_ranks,
    seconds_in_words,
    visible,
)

if TYPE_CHECKING:
    from pathlib import Path


def test_a_duration_is_never_an_exponent() -> None:
    seconds = (0.0, 0.31, 41.2, 59.94, 59.96, 125.4, 3599.6)
    words = ["<1 ms", "0.31 s", "41.2 s", "59.9 s", "1 min 00 s", "2 min 05 s", "1 h 00 min"]
    assert [seconds_in_words(one) for one in seconds] == words
    assert seconds_in_words(float("inf")) == seconds_in_words(1e15)


rank_lists = some.lists(some.integers(0, 60) | some.integers(0, LARGEST_RANK))


@given(rank_lists)
def test_ranges_read_back_as_the_ranks_in_order(ranks: list[int]) -> None:
    assert parse_ranks(format_ranks(ranks)) == tuple(sorted(set(ranks)))


@pytest.mark.parametrize("text", ["-1", "1-", "3-1", "a", "1-2-3", "0-99999999", "1.5"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no"):
        parse_ranks(text)


texts = some.text(
    some.characters(categories=["L", "N", "P", "Z", "C"]) | some.sampled_from("\x1b\x9b\u202e\n\\")
)


@given(texts)
def test_what_is_visible_stays_as_it_is_and_nothing_is_left_that_a_terminal_obeys(
    text: str,
) -> None:
    once = visible(text)
    assert once.isprintable()
    assert one_line(text).isprintable()
    assert (once == text) == text.isprintable()


def test_what_is_not_visible_is_shown_by_its_escape() -> None:
    text = "a\tb\x1b[31m\x07\x7f\x9b\u200b\u202e\u2066\ufeff\ud800 é 模 🙂"
    shown = r"a\tb\x1b[31m\x07\x7f\x9b\u200b\u202e\u2066\ufeff\ud800 é 模 🙂"
    assert visible(text) == shown
    assert one_line(f" {text}\r\n\n b ") == shown.replace(r"\t", " ") + " b"


# C0 without the line break, DEL, C1, directions, zero width, byte order mark
OBEYED = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)
EVIL = "\x1b[2J\x1b]0;owned\x07\u202egnp\u200b\r\n[red]a[/red]"
OURS = [sys.executable, "-m", "lightning_hangcheck"]


def assert_harmless(shown: bytes) -> str:
    """Nothing in it is obeyed by a terminal."""
    text = shown.decode()
    assert OBEYED.findall(text) == []
    return text


def hangcheck(folder: Path, *words: str) -> tuple[int, str]:
    """Run a command on a folder, and return its exit code and all that it showed."""
    ended = subprocess.run(
        [*OURS, *words], cwd=folder, capture_output=True, timeout=PATIENCE_S, check=False
    )
    return ended.returncode, assert_harmless(ended.stdout + ended.stderr)


@pytest.mark.real
def test_the_console_and_the_report_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last words, checkpoints, sections and tracked loops of a rank that failed."""
    program = str(PROGRAMS / "escaping_names.py")
    job = [sys.executable, program, "failing", EVIL, os.fsdecode(b"\xff")]
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    code, shown = hangcheck(tmp_path, "run", "--run-dir", "run", "--", *job)
    assert code == 1
    assert r"CHECKPOINT 1: checkpoint\x1b[2J" in shown
    assert r"section\x1b[2J\x1b]0;owned\x07\x9b31m" in shown
    assert r"ValueError: no \x1b[2J" in shown
    assert "[red]a[/red][link=http://evil]b[/link]" in shown, "no markup is interpreted"
    assert not [line for line in shown.splitlines() if line.startswith("HANG")], "a forged line"
    assert hangcheck(tmp_path, "report", "run")[0] == 0
    assert hangcheck(tmp_path, "report", "run", "--json")[0] == 0
    files = [file for file in (tmp_path / "run").rglob("*") if file.is_file()]
    left = {file.name: assert_harmless(file.read_bytes()) for file in files}
    assert r"\\udcff" in left["run.json"]
    assert r"\u001b[2J" in left["rank-0.jsonl"]


@pytest.mark.parametrize(
    "words", [["report", EVIL], ["--" + EVIL], [EVIL], ["attach", EVIL], ["explain", EVIL]]
)
def test_an_error_that_quotes_its_argument(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(words) == 2
    said = assert_harmless(capsys.readouterr().err.encode())
    assert said.startswith("hangcheck: ")
    assert said.count("\n") == 1


@pytest.mark.parametrize("bar", ["rich", "tqdm"])
def test_the_bar_of_a_tracked_loop(bar: str, tmp_path: Path) -> None:
    """On a real terminal; of the escapes in it, all are the bar's own."""
    reader, writer = pty.openpty()
    code = f"import lightning_hangcheck as hc\nfor _ in hc.track([1], {EVIL!r}, bar={bar!r}): pass"
    try:
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            stderr=writer,
            env={**os.environ, "HANGCHECK_RUN_DIR": str(tmp_path / "run"), "COLUMNS": "300"},
            timeout=PATIENCE_S,
            check=True,
        )
        shown = os.read(reader, 1 << 16).decode()
    finally:
        os.close(reader)
        os.close(writer)
    assert r"\x1b[2J\x1b]0;owned\x07\u202egnp\u200b [red]a[/red]" in shown
    assert "\x1b[2J" not in shown
    assert not {"\x07", "\u202e", "\u200b"} & set(shown)
