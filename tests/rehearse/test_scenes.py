"""Which scenes a program can be in, by what its ranks noted."""

from __future__ import annotations

import pytest

from lightning_hangcheck.model.rehearsal import Note
from lightning_hangcheck.rehearse import SCENES, Facts


def _loader(rank: int, mark: str, *, key: str = "Data", shared: bool = False) -> Note:
    return Note(kind="loader", rank=rank, key=key, mark=mark, shared=shared)


def _missing(name: str, facts: Facts) -> str:
    return next(scene for scene in SCENES if scene.name == name).missing(facts)


@pytest.mark.parametrize(
    ("loaders", "uneven"),
    [
        ([_loader(0, "a"), _loader(1, "b")], ("Data",)),
        ([_loader(0, "a"), _loader(1, "a")], ()),
        ([_loader(0, "a", shared=True), _loader(1, "b", shared=True)], ()),
        ([_loader(0, "a", key="Data of 3"), _loader(1, "a", key="Data of 4")], ("Data of 4",)),
        ([_loader(1, "b")], ()),
        ([], ()),
    ],
)
def test_a_loader_may_be_uneven_where_ranks_read_different_data_and_nothing_evens_it(
    loaders: list[Note], uneven: tuple[str, ...]
) -> None:
    facts = Facts(loaders, ranks=2)
    assert facts.uneven == uneven
    for name in ("fewer-samples", "no-samples", "smaller-last-batch"):
        assert bool(_missing(name, facts)) != bool(uneven)


@pytest.mark.parametrize(
    ("answers", "why"),
    [("", "nothing of the program"), ("Lightning", "only Lightning"), ("program", "")],
)
def test_sigterm_is_sent_where_the_program_answers_it(answers: str, why: str) -> None:
    facts = Facts([Note(kind="step", rank=1, text=answers)], ranks=2)
    assert _missing("sigterm", facts).startswith(why)
    assert bool(_missing("sigterm", facts)) == bool(why)


@pytest.mark.parametrize(
    ("workers", "played"), [("0", "one-worker"), ("1", "no-workers"), ("2", "no-workers")]
)
def test_the_number_of_workers_that_it_has_is_not_played_again(workers: str, played: str) -> None:
    facts = Facts([Note(kind="workers", rank=0, text=workers)], ranks=2)
    assert not _missing(played, facts)
    assert _missing("one-worker", facts) or workers != "1"


def test_what_a_program_does_not_have_is_skipped() -> None:
    facts = Facts([Note(kind="group", rank=0, text="2")], ranks=2)
    assert facts.world == 2
    assert [scene.name for scene in SCENES if not scene.missing(facts)] == ["as-it-is"]
