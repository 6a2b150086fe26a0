"""Ranks meet, or all learn the same reason why they did not."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from hooks.launching import json_lines, run_job, start_job
from long_tests import WHEN_ASKED_FOR
from processes import end
from recorded_run import job_session

from lightning_hangcheck.session.session import SESSION_VARIABLE

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Meet = Callable[..., dict[int, list[dict[str, Any]]]]

PATIENCE_S = 240.0
LONG_S = 200.0
"""For ranks that all come: each starts a Python, which may take long where others do, too."""
APART_S = 3.0
"""For one that does not come, after all have met: the others are this close together."""


@pytest.fixture
def meet(tmp_path: Path) -> Iterator[Meet]:
    """Run these steps on these ranks of a job of three; return what each rank said."""
    session = job_session(tmp_path)
    started: list[subprocess.Popen[str]] = []

    def start(rank: int, steps: list[list[Any]], more: dict[str, str]) -> subprocess.Popen[str]:
        numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 3, "LOCAL_WORLD_SIZE": 3}
        environment = {key: str(value) for key, value in numbers.items()}
        environment |= {SESSION_VARIABLE: str(session.path), "MASTER_PORT": "1", **more}
        job = start_job(tmp_path, "hooks_rendezvous.py", json.dumps(steps), environment=environment)
        started.append(job)
        return job

    def run(
        steps: list[list[Any]], ranks: tuple[int, ...] = (0, 1, 2), **more: str
    ) -> dict[int, list[dict[str, Any]]]:
        jobs = {rank: start(rank, steps, more) for rank in ranks}
        return {
            rank: list(json_lines(job.communicate(timeout=PATIENCE_S)[0]))
            for rank, job in jobs.items()
        }

    yield run
    for job in started:
        end(job)


def test_ranks_meet_any_number_of_times_or_all_fail_as_the_first_does(meet: Meet) -> None:
    """Every rank gets what each brought; rank 0 goes first; its failure is everybody's."""
    said = meet(
        [
            *[["meet", "a/b c", LONG_S]] * 2,
            ["first", "tokenizer", LONG_S, 0.3],
            ["first", "cache", LONG_S, 0.1, True],
            ["first", "tokenizer", LONG_S, "fail"],
        ]
    )

    everything = {"0": "from 0", "1": "from 1", "2": "from 2"}
    for lines in said.values():
        assert [line["result"] for line in lines[:2]] == [everything, everything]
    for step in (2, 3):
        results = {rank: lines[step]["result"] for rank, lines in said.items()}
        assert results[0]["ended"] <= min(results[1]["began"], results[2]["began"])
    (failure,) = {lines[4]["failed"] for lines in said.values()}
    told = r"rank 0 failed in 'tokenizer' after \d+\.\d s: ValueError: no such tokenizer"
    assert re.search(told, failure), failure
    assert "verysecretvalue" not in failure
    assert said[0][4]["cause"].startswith("ValueError")


def test_absent_ranks_are_named_in_the_same_words_on_all_that_came(meet: Meet) -> None:
    said = meet([["meet", "wandb before", 1.0]], ranks=(0,))
    late = meet([["meet", "wandb before", 1.0]], ranks=(2,))

    assert "ranks 1-2 of 3 did not come to 'wandb before' within 1 s" in said[0][0]["failed"]
    assert "HANGCHECK_MEETING_TIMEOUT" in said[0][0]["failed"]
    assert late[2] == [{**said[0][0], "rank": 2}]


def test_rank_zero_that_does_not_come_is_named_by_the_others(meet: Meet) -> None:
    said = meet([["meet", "here", 0.5]], ranks=(1, 2))
    late = meet([["meet", "here", 0.5]], ranks=(0,))

    assert "rank 0 of 3 did not come to 'here' within 0.5 s" in said[1][0]["failed"]
    assert "rank 0 of 3 did not come" in said[2][0]["failed"]
    assert late[0][0]["failed"] in (said[1][0]["failed"], said[2][0]["failed"])


@WHEN_ASKED_FOR
def test_rank_zero_that_is_late_fails_on_every_rank(meet: Meet) -> None:
    """Also on one that comes when rank 0 is done at last: the first decision holds."""
    said = meet([["first", "download", 0.5, 5.0]], ranks=(0, 1))
    said |= meet([["first", "download", 0.5, 5.0]], ranks=(2,))

    (failure,) = {lines[0]["failed"] for lines in said.values()}
    assert "rank 0 did not finish 'download' within 0.5 s" in failure
    assert "rank 0: pid" in failure
    assert "do_first (" in failure


def test_process_without_peers_just_runs_its_body_and_keeps_its_own_error(tmp_path: Path) -> None:
    steps = json.dumps([["first", "alone", 20.0, 0.0], ["first", "alone", 20.0, "fail"]])
    first, second = run_job(tmp_path, "hooks_rendezvous.py", steps, environment={}).said

    assert first["result"]["ended"]
    assert second["raised"].startswith("ValueError('no such tokenizer")


def test_everything_switched_off_meets_nobody(meet: Meet) -> None:
    steps = [["first", "alone", 20.0, 0.0], ["meet", "alone", 20.0]]
    said = meet(steps, ranks=(1,), HANGCHECK_DISABLE="1")

    assert said[1][1]["result"] == {"0": "from 1"}


def test_place_that_cannot_be_written_is_said_with_the_way_out(meet: Meet, tmp_path: Path) -> None:
    (tmp_path / "session" / "meet").rmdir()
    (tmp_path / "session" / "meet").write_text("a file where a folder should be")
    said = meet([["meet", "here", LONG_S]], ranks=(1,))

    assert "cannot be written" in said[1][0]["failed"]
    assert "free space below" in said[1][0]["failed"]


def test_folder_is_there_on_every_rank_or_all_say_who_does_not_see_it(
    meet: Meet, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    steps = [
        ["directory", "a/b", LONG_S],
        ["directory", "a/b", LONG_S],
        ["directory", "c", APART_S, 2],
        ["directory", f"{tmp_path}/file/a", LONG_S],
    ]
    said = meet(steps)

    assert (tmp_path / "a/b").is_dir()
    for lines in said.values():
        assert [line.get("result") for line in lines[:2]] == ["a/b", "a/b"]
        assert [line["failed"] for line in lines[2:]] == [one["failed"] for one in said[0][2:]]
    assert "rank 2 did not see" in said[0][2]["failed"]
    assert "within 3 s, though rank 0 made it" in said[0][2]["failed"]
    assert "rank 0 could not make" in said[0][3]["failed"]
