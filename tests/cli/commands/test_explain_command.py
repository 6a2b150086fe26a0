"""`hangcheck explain`: the pages of causes, and near matches of what is none."""

from __future__ import annotations

import pytest

from lightning_hangcheck.cli.main import invoke
from lightning_hangcheck.judge.knowledge import causes_file


@pytest.mark.parametrize("cause", causes_file().cause)
def test_every_cause_has_a_page(cause: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Title, meaning, how it is recognised, and each remedy with where to read on."""
    known = causes_file().cause[cause]
    assert invoke(["explain", cause]) == 0
    page = " ".join(capsys.readouterr().out.split())
    assert page.startswith(f"{cause}: {known.title} what {known.explanation} seen by ")
    assert known.recognised
    assert all(remedy.see in page for remedy in known.remedies)
    assert "{" not in page


def test_without_a_cause_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["explain"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(causes_file().cause)


def test_a_dash_and_capitals_are_understood(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["explain", "Rank-Stalled"]) == 0
    assert capsys.readouterr().out.startswith("rank_stalled: ")


@pytest.mark.parametrize(
    ("word", "remedy"),
    [
        ("rank_staled", "did you mean rank_stalled"),
        ("proces_dead", "process_dead"),
        ("banana", "list them: hangcheck explain"),
    ],
)
def test_an_unknown_cause_is_one_sentence_with_near_matches(
    word: str, remedy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["explain", word]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"hangcheck: '{word}' is not a cause; ")
    assert said.err.count("\n") == 1
    assert remedy in said.err
