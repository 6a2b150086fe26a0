"""The guard under each way to launch, with a rank 0 that fails or is late, and at a run's end."""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING, Any

import pytest
from hooks.launching import OFFLINE, TORCHRUN, Ended, run_job
from hooks.wandb_guard.wandb_server import Manner, WandbServer
from long_tests import real_when_asked_for

from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.hooks.wandb_guard import guarded_wandb_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    Serve = Callable[[Manner], Mapping[str, str]]

BLOCK, HEADER = 32_768, struct.Struct("<IHB")  # LevelDB's log format: checksum, length, kind
FILE_HEADER = 7
FULL, LAST = 1, 4


def logged(file: Path, key: str) -> list[str]:
    """The values of a metric, as JSON, in the order in which they were logged."""
    return [
        item.value_json
        for record in _records(file)
        if record.WhichOneof("record_type") == "history"
        for item in record.history.item
        if key in (item.key, *item.nested_key)
    ]


def exit_code(file: Path) -> int:
    """What wandb was told of the program's end; a run without that counts as crashed."""
    (record,) = (one for one in _records(file) if one.WhichOneof("record_type") == "exit")
    return int(record.exit.exit_code)


def _records(file: Path) -> Iterator[Any]:
    from wandb.proto.wandb_internal_pb2 import Record

    data, place, collected = file.read_bytes(), FILE_HEADER, b""
    while place + HEADER.size <= len(data):
        left = BLOCK - place % BLOCK
        if left < HEADER.size:
            place += left
            continue
        _, length, kind = HEADER.unpack_from(data, place)
        collected += data[place + HEADER.size : place + HEADER.size + length]
        place += HEADER.size + length
        if kind in (FULL, LAST):
            yield Record.FromString(collected)
            collected = b""


STEPS = 2
IN_TRAINING = {"trainer_init", "dataloading", "training_step"}


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start a server of this manner; return what makes a job use it, and go offline without it."""
    started = []

    def start(manner: Manner) -> Mapping[str, str]:
        server = WandbServer(manner)
        started.append(server)
        choice = {"HANGCHECK_LOGGER_ON_FAILURE": "offline", "HANGCHECK_LOGGER_INIT_TIMEOUT": "5"}
        return {**OFFLINE, **server.environment, **choice}

    yield start
    for server in started:
        server.close()


def offline_runs(folder: Path) -> list[str]:
    return [path.name for path in folder.glob("**/offline-run-*") if path.is_dir()]


def check_trained(job: Ended, folder: Path, ranks: int) -> dict[int, Any]:
    """All ranks trained with one run, whose name, id and folder all of them know."""
    assert job.code == 0, job.errors
    trained = job.of("trained")
    assert sorted(trained) == list(range(ranks))
    (run,) = offline_runs(folder)
    run_id = run.rpartition("-")[2]
    for rank, said in trained.items():
        assert said["identity"] == ["demo", run_id, "logs-of-0"]
        assert said["page"] == [rank, ranks, rank, 2]
        assert set(said["phases"]) >= IN_TRAINING
    assert trained[0]["run_id"] == run_id
    (data,) = folder.glob(f"**/run-{run_id}.wandb")
    assert len(logged(data, "loss")) == STEPS, "what the ranks log arrives in that run"
    assert len({said["session"] for said in trained.values()}) == 1
    assert {said["built_by"] for said in trained.values()} == {trained[0]["pid"]}
    return trained


@pytest.mark.real
def test_ranks_that_lightning_starts_in_fit_read_what_the_first_process_left(
    tmp_path: Path, serve: Serve
) -> None:
    """The server accepts and never answers: the job goes on offline."""
    environment = {**serve("mute"), "PACKAGE": "pytorch_lightning"}
    job = run_job(tmp_path, "hooks_training.py", "ddp", "2", environment=environment)

    trained = check_trained(job, tmp_path, ranks=2)
    made = [line for line in job.said if line["event"] in ("made", "trained")]
    assert made[0] == {**made[0], "event": "made", "rank": "0"}, "rank 0 waits for nobody"
    assert trained[0]["pid"] == made[0]["pid"]
    assert {line["package"] for line in job.of("ended").values()} == {"pytorch_lightning"}


@real_when_asked_for
def test_spawned_ranks_attach_to_the_run_of_the_main_process(tmp_path: Path, serve: Serve) -> None:
    """The server resets every connection: the job goes on offline."""
    environment = serve("resets")
    job = run_job(tmp_path, "hooks_training.py", "ddp_spawn", "2", environment=environment)

    trained = check_trained(job, tmp_path, ranks=2)
    assert trained[1]["experiment"] == "_DummyExperiment"
    main = next(line for line in job.said if line["event"] == "made")
    assert main["pid"] not in {said["pid"] for said in trained.values()}


@real_when_asked_for
def test_rank_zero_that_fails_or_is_late_is_the_same_story_on_both_ranks(tmp_path: Path) -> None:
    job = run_job(tmp_path, "hooks_guard.py", str(tmp_path), launcher=TORCHRUN)

    assert job.code == 0, job.errors
    assert [said["brought"] for said in job.of("met").values()] == [{"0": "0", "1": "1"}] * 2
    for said in job.of("no store").values():
        assert "torchrun's store at 127.0.0.1:1 does not answer" in said["failed"]
    events = ("refused", "late", "none", "offline")
    refused, late, none, offline = (job.of(event) for event in events)
    assert refused[0]["failed"] == refused[1]["failed"]
    assert "rank 0 could not create the wandb run" in refused[0]["failed"]
    assert "MisconfigurationException" in refused[0]["failed"]
    assert "correct the arguments of guarded_wandb_logger" in refused[0]["failed"]
    assert late[0]["failed"] == late[1]["failed"]
    assert "gave up after" in late[0]["failed"]
    assert "WANDB_MODE=offline" in late[0]["failed"]
    assert none[0]["identity"] == none[1]["identity"]
    assert "Training goes on without wandb" in job.errors
    (run,) = offline_runs(tmp_path)
    identity = ["demo", run.rpartition("-")[2], str(tmp_path)]
    assert [said["identity"] for said in offline.values()] == [identity, identity]
    assert re.search(r"gave up after \d+\.\d s: no answer within 3 s", job.errors)
    (data,) = tmp_path.glob("**/offline-run-*/*.wandb")
    assert logged(data, "loss") == ["1"]
    assert job.of("end")[1]["modules"] == [], "only rank 0 needs wandb"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"on_failure": "ignore"}, "write 'raise', 'offline' or 'none'"),
        ({"init_timeout": 0}, "is no positive number"),
        ({"finish_timeout": -1.0}, "is no positive number"),
    ],
)
def test_options_that_cannot_be_used_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadUsage, match=sentence):
        guarded_wandb_logger(project="demo", **options)


SLOW_S = 0.6
LEFT_WITHIN_S = 60.0
"""Our limit is 4 s; wandb alone waits for as long as the server is mute."""


@real_when_asked_for
@pytest.mark.parametrize("how", ["by itself", "at exit"])
def test_a_mute_server_is_left_and_nothing_logged_is_lost(how: str, tmp_path: Path) -> None:
    """The server first answers slowly, which must not be cut short."""
    server = WandbServer("answers", delay=SLOW_S)
    try:
        job = run_job(tmp_path, "hooks_run_finish.py", how, environment=server.environment)
    finally:
        server.close()

    assert job.code == 3, job.errors
    said = {line["event"]: line for line in job.said}
    assert said["made"]["seconds"] > 2 * SLOW_S
    assert said["made"]["offline"] is False
    assert job.errors.count("wandb run creation returned") == 1
    assert "left" in said, "its end waits for no server that is mute"
    if how == "by itself":
        assert said["finished"]["seconds"] < LEFT_WITHIN_S
        assert "wandb is waited for, to finish its run (server http://127.0.0.1" in job.errors
    (folder,) = (tmp_path / "wandb").glob("run-*")
    (file,) = folder.glob("*.wandb")
    assert exit_code(file) == 3
    assert logged(file, "loss") == ["0", "1", "2", "3", "4"]
