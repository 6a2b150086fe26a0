"""`--wandb-alert`: the request that wandb itself sends, or one sentence why none was."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import pytest
from alerts.test_hang_command import news
from hooks.wandb_guard.wandb_server import WandbServer
from msgspec.structs import replace
from watch.launched import python, run

from lightning_hangcheck.alerts.wandb_alert import refuse_without_key, wandb_alert
from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.session.experiments import Experiment, note_experiment, noted_experiment
from lightning_hangcheck.session.session import Session, SessionFacts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hooks.wandb_guard.wandb_server import Manner


KEY = "leak" * 10
GIVEN = {"WANDB_API_KEY": KEY}
HANGING = """
import threading, wandb
made = wandb.init(project="demo", entity="me", settings=wandb.Settings(console="off"))
made.alert("own", "by wandb itself", "ERROR")
one = threading.Lock()
one.acquire()
one.acquire()
"""
HASTE = ("--idle-after", "4", "--stall-timeout", "4", "--on-hang", "abort", "--abort-grace", "1")


def experiment(server: str, **facts: object) -> Experiment:
    made = Experiment(entity="me", project="demo", run_id="abc", server=server)
    return replace(made, **facts)


@pytest.fixture(params=["answers"])
def server(request: pytest.FixtureRequest) -> Iterator[WandbServer]:
    manner: Manner = request.param
    served = WandbServer(manner)
    try:
        yield served
    finally:
        served.close()


def address(server: WandbServer) -> str:
    return server.environment["WANDB_BASE_URL"]


def test_the_alert_names_the_run_and_the_key_is_only_in_its_header(
    server: WandbServer, tmp_path: Path
) -> None:
    told = replace(news(tmp_path), title="HANG " + "x" * 100)
    assert wandb_alert(told, experiment(address(server)), GIVEN) == ""
    ((who, asked),) = server.alerts
    assert who == "Basic " + base64.b64encode(f"api:{KEY}".encode()).decode()
    given = asked["variables"]
    assert (given["entityName"], given["projectName"], given["runName"]) == ("me", "demo", "abc")
    assert len(given["title"]) < 64
    assert told.text in given["text"]
    assert KEY not in str(asked)


@pytest.mark.parametrize("server", ["mute", "resets"], indirect=True)
def test_a_server_that_does_not_answer_is_left_within_the_limit(
    server: WandbServer, tmp_path: Path
) -> None:
    trouble = wandb_alert(news(tmp_path), experiment(address(server)), GIVEN, 0.5)
    assert trouble.startswith("--wandb-alert: 127.0.0.1 was not reached (")
    assert KEY not in trouble


def test_a_server_that_refuses_is_named(server: WandbServer, tmp_path: Path) -> None:
    told = replace(news(tmp_path), title="refused")
    trouble = wandb_alert(told, experiment(address(server)), GIVEN)
    assert trouble == "--wandb-alert: the server did not take the alert"


def test_without_a_run_on_a_server_nothing_is_sent(server: WandbServer, tmp_path: Path) -> None:
    told = news(tmp_path)
    assert "no rank of this node" in wandb_alert(told, None, GIVEN)
    assert "is offline" in wandb_alert(told, experiment(address(server), offline=True), GIVEN)
    assert "no key for 127.0.0.1" in wandb_alert(told, experiment(address(server)), {})
    assert "was not reached" in wandb_alert(told, experiment("file:///etc/passwd"), GIVEN)
    assert not server.alerts


def test_the_key_may_be_that_of_wandb_login(server: WandbServer, tmp_path: Path) -> None:
    login = tmp_path / ".netrc"
    login.write_text(f"machine 127.0.0.1\n login user\n password {KEY}\n")
    login.chmod(0o600)
    environment = {"HOME": str(tmp_path)}
    refuse_without_key(environment)
    assert wandb_alert(news(tmp_path), experiment(address(server)), environment) == ""
    assert len(server.alerts) == 1


def test_what_could_tell_nobody_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(BadUsage, match="wandb login"):
        refuse_without_key({"HOME": str(tmp_path)})
    with pytest.raises(BadUsage, match="WANDB_MODE=offline"):
        refuse_without_key({**GIVEN, "WANDB_MODE": "offline"})
    refuse_without_key(GIVEN)


def test_of_several_runs_that_of_the_lowest_rank_is_told(tmp_path: Path) -> None:
    facts = SessionFacts(run_dir="run", command="c", started_at="", root_pid=1, launched=True)
    session = Session(tmp_path, facts)
    assert noted_experiment(session) is None
    for pid, rank in ((10, 3), (11, None), (12, 1)):
        note_experiment(session, pid, experiment("http://here", rank=rank, run_id=f"of-{rank}"))
    found = noted_experiment(session)
    assert found is not None
    assert found.run_id == "of-1"


@pytest.mark.real
def test_a_hang_is_told_at_the_run_that_the_job_made_as_wandb_would(
    server: WandbServer, tmp_path: Path
) -> None:
    pytest.importorskip("wandb")
    given = {**server.environment, **GIVEN}
    ended = run(tmp_path, python(HANGING), "--wandb-alert", *HASTE, **given)
    assert ended.returncode == 75, ended.stderr
    (who_itself, itself), (who, ours) = server.alerts
    assert who == who_itself
    assert ours["operationName"] == itself["operationName"]
    assert ours["variables"].keys() == itself["variables"].keys()
    same = ("entityName", "projectName", "runName", "severity", "waitDuration")
    assert [ours["variables"][name] for name in same] == [
        itself["variables"][name] for name in same
    ]
    assert ours["variables"]["title"].startswith("HANG ")
    assert "--wandb-alert" not in ended.stderr
    left = [file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file()]
    assert KEY.encode() not in b"".join([*left, ended.stderr.encode()])
