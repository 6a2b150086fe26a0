"""HangCheck in real Trainers of both packages: what the page shows behind each hook."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from hooks.launching import OFFLINE, Ended, run_job
from long_tests import WHEN_ASKED_FOR

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.real

STEP = ["training_step"] * 5
"""Behind each hook of a step: the page tells it once, the rank's calls tell which part it is in."""
EVALUATED = {
    "validate": "on_validation_batch_start",
    "test": "on_test_batch_start",
    "predict": "on_predict_batch_start",
}


@pytest.fixture(
    scope="module",
    params=["lightning.pytorch", pytest.param("pytorch_lightning", marks=WHEN_ASKED_FOR)],
)
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """One process through all stages, which the tests below look at."""
    folder: Path = tmp_path_factory.mktemp("single")
    ended = run_job(folder, "hooks_single.py", environment={**OFFLINE, "PACKAGE": request.param})
    assert ended.code == 0, ended.errors
    return ended


def rows(job: Ended, event: str, hook: str = "") -> list[list[object]]:
    """Hook, phase, epoch, step and batch, as the page showed them behind the hook."""
    return [row for row in job.of(event)[0]["seen"] if hook in ("", row[0])]


def test_it_is_a_callback_of_that_package_and_stays_one_when_copied(job: Ended) -> None:
    kind = job.of("kind")[0]

    assert kind["callback"]
    assert kind["hangcheck"]
    assert kind["public"]
    assert kind["revived"] == [True, True]
    assert kind["state_key"] == "HangCheck"
    assert job.of("alone")[0]["step"] == 1, "also as the only one, outside a list"


def test_fit_goes_through_the_phases_of_the_contract_in_order(job: Ended) -> None:
    phases = [row[1] for row in rows(job, "fit")]
    steps = [*STEP, *STEP, *["validation"] * 5, "dataloading", "dataloading", "checkpoint_save"]

    assert phases == [
        *["trainer_init"] * 2,
        *["sanity_check"] * 5,
        *["dataloading"] * 3,
        *steps,
        "dataloading",
        *steps,
        *["teardown"] * 2,
    ]


def test_epoch_step_and_batch_are_on_the_page(job: Ended) -> None:
    starts = [row[2:] for row in rows(job, "fit", "on_train_batch_start")]
    ends = [row[2:] for row in rows(job, "fit", "on_train_batch_end")]

    assert starts == [[0, 0, 0], [0, 1, 1], [1, 2, 0], [1, 3, 1]]
    assert ends == starts, "the page tells a step once, when it begins"


def test_a_save_is_counted_when_it_ends_and_its_phase_ends_with_it(job: Ended) -> None:
    """A tiny model's save takes hundredths of a second: whoever polled would miss it."""
    saved, phases = job.of("saved")[0], job.of("phases")[0]

    assert (saved["fitted"], saved["step"], saved["again"]) == (2, 4, 3)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", saved["at"])
    assert phases["before"] == phases["after"] == "teardown"


def test_what_training_goes_on_from_is_said_and_what_is_evaluated_is_not(job: Ended) -> None:
    (line,) = [line for line in job.errors.splitlines() if "training goes on from" in line]
    told = r"training goes on from (/\S+)/end\.ckpt: step 4, epoch 2, 4 batches seen, written \S+ "

    assert re.search(told, line), line
    assert job.of("resumed")[0]["step"] == 6


@pytest.mark.parametrize("stage", EVALUATED)
def test_other_stages_count_their_batches(stage: str, job: Ended) -> None:
    batches = rows(job, stage, EVALUATED[stage])

    assert [(row[1], row[4]) for row in batches] == [("validation", n) for n in range(4)]
    assert rows(job, stage)[-1][:2] == ["teardown", "teardown"]


def test_hook_that_cannot_work_rests_and_training_goes_on(job: Ended) -> None:
    assert job.errors.count("HangCheck.on_train_batch_start failed (AttributeError") == 1
    batches = rows(job, "broken", "on_train_batch_start")
    assert len(batches) == 2
    assert {row[1] for row in batches} == {"teardown"}, "the second instance does not take over"


def test_second_instance_in_one_trainer_is_inert_and_said_once(job: Ended) -> None:
    assert job.errors.count("HangCheck was added twice") == 1
    assert job.of("twice")[0]["step"] == 2


def test_exception_becomes_last_words_until_training_goes_on(job: Ended) -> None:
    raised = job.of("raised")[0]

    assert raised["ending"] == "raised"
    assert raised["last_words"].startswith("RuntimeError: no more of this in training_step")
    assert job.of("left")[0]["error"] == "no more of this"
    assert job.of("went on")[0]["ending"] == "running", "it was caught, and the next fit began"
    assert job.of("went on")[0]["last_words"] == ""
