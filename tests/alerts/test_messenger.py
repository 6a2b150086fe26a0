"""What is sent where a job hangs, to whom; and what is counted of it."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, get_args

import msgspec
import psutil
import pytest
from alerts.receiver import receiving
from processes import end, is_alive, until
from prometheus_client.parser import text_string_to_metric_families

from lightning_hangcheck.alerts.messenger import (
    AlertsAskedFor,
    Delivery,
    HangNews,
    environment_of,
    run_hang_command,
)
from lightning_hangcheck.alerts.metrics_text import METRICS, RunReading, render
from lightning_hangcheck.isolation.command import environment_of_module, own_command
from lightning_hangcheck.model.slugs import VerdictKind

if TYPE_CHECKING:
    from pathlib import Path

    from prometheus_client.metrics_core import Metric

PROGRAM = "lightning_hangcheck.alerts.messenger"

LEAK = "xleakx"


def start(delivery: Delivery) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        own_command(PROGRAM),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment_of_module(),
        start_new_session=True,
    )
    assert process.stdin is not None
    process.stdin.write(msgspec.json.encode(delivery))
    process.stdin.close()
    process.stdin = None
    return process


def test_each_way_is_tried_whatever_becomes_of_the_others(tmp_path: Path) -> None:
    pytest.importorskip("apprise", reason="the extra `notify` is not installed")
    with receiving() as gone:
        pass
    with receiving() as people:
        addresses = (f"json://{gone.address}/{LEAK}", f"json://{people.address}/{LEAK}")
        asked_for = AlertsAskedFor(
            notify=addresses,
            on_hang_exec="exit 7",
        )
        process = start(Delivery(asked_for, news(tmp_path)))
        try:
            _, said = process.communicate(timeout=120)
        finally:
            end(process)
    assert process.returncode == 0, said
    assert len(people.got) == 1
    lines = sorted(line.partition("] ")[2] for line in said.decode().splitlines())
    assert [line.partition(" (")[0] for line in lines] == [
        "notify address 1",
        "the command of --on-hang-exec failed",
    ]
    assert lines[0].startswith("notify address 1 (json://) was not reached: ")
    assert LEAK.encode() not in said


def test_one_that_is_told_to_end_takes_its_command_with_it(tmp_path: Path) -> None:
    asked_for = AlertsAskedFor(on_hang_exec="echo $$; sleep 1000")
    process = start(Delivery(asked_for, news(tmp_path)))
    file = tmp_path / "evidence" / "1" / "on-hang-exec.txt"
    try:
        until(lambda: file.exists() and printed(tmp_path).endswith("\n"), "the command to run")
        shell = printed(tmp_path).strip()
        assert psutil.pid_exists(int(shell))
        process.terminate()
        process.wait(120)
        until(lambda: ended(shell), "the command to end")
    finally:
        end(process)


USERS = {"PATH": "/usr/bin:/bin", "TOKEN": "of-the-user", "HANGCHECK_NOTIFY": "slack://secret"}


def news(run: Path, number: int | None = 1) -> HangNews:
    (run / "evidence" / "1").mkdir(parents=True, exist_ok=True)
    return HangNews(
        kind="hang",
        cause="rank_stalled",
        culprits=(1, 3),
        title="HANG rank_stalled in run",
        text="HANG  rank 1 stands still\0",
        run_dir=str(run),
        number=number,
    )


def printed(run: Path) -> str:
    return (run / "evidence" / "1" / "on-hang-exec.txt").read_text()


def ended(pid: str) -> bool:
    return not psutil.pid_exists(int(pid)) or not is_alive(psutil.Process(int(pid)))


def test_the_command_finds_the_news_in_its_environment(tmp_path: Path) -> None:
    """And the user's own variables, but no address that messages go to."""
    assert environment_of(news(tmp_path), USERS) == {
        "PATH": "/usr/bin:/bin",
        "TOKEN": "of-the-user",
        "HANGCHECK_CAUSE": "rank_stalled",
        "HANGCHECK_CULPRITS": "1,3",
        "HANGCHECK_KIND": "hang",
        "HANGCHECK_REPORT": f"{tmp_path}/report.html",
        "HANGCHECK_RUN_DIR": str(tmp_path),
        "HANGCHECK_SUMMARY": "HANG  rank 1 stands still ",
        "HANGCHECK_VERDICT": f"{tmp_path}/verdicts/1.json",
    }


def test_what_it_prints_is_kept_beside_the_evidence(tmp_path: Path) -> None:
    line = 'echo "$HANGCHECK_KIND of $HANGCHECK_CULPRITS"; echo trouble >&2'
    assert run_hang_command(line, news(tmp_path), USERS) == ""
    assert printed(tmp_path) == "hang of 1,3\ntrouble\n"


def test_a_command_that_fails_is_told_of_with_its_output(tmp_path: Path) -> None:
    trouble = run_hang_command("echo no such host; exit 7", news(tmp_path), USERS)
    file = tmp_path / "evidence" / "1" / "on-hang-exec.txt"
    assert trouble == (
        f"the command of --on-hang-exec failed (exit code 7); what it printed is in {file}"
    )


@pytest.mark.parametrize(("last", "outcome"), [("sleep 1000", "was ended after 2 s"), ("", "")])
def test_all_that_it_started_ends_with_it_or_at_the_limit(
    last: str, outcome: str, tmp_path: Path
) -> None:
    line = f"sleep 1000 & echo $!; {last}"
    trouble = run_hang_command(line, news(tmp_path), USERS, time_limit_s=2.0)
    assert outcome in trouble
    assert bool(trouble) is bool(outcome)
    until(lambda: ended(printed(tmp_path).strip()), "what it started to end")


def test_a_run_folder_that_cannot_be_written_keeps_no_command_from_running(tmp_path: Path) -> None:
    unsaved = news(tmp_path, None)
    line = f"touch {tmp_path}/done; false"
    trouble = run_hang_command(line, unsaved, USERS)
    assert trouble.endswith("(exit code 1); what it printed could not be kept")
    assert (tmp_path / "done").exists()


READING = RunReading(
    run_id="run",
    standing="hang",
    stall_s=61.25,
    progress={10: 1_790_000_002.5, 2: 1_790_000_001.0},
    written=1_790_000_063.0,
    exit_code=-9,
)


def families(reading: RunReading) -> dict[str, Metric]:
    return {one.name: one for one in text_string_to_metric_families(render(reading).decode())}


def test_every_metric_has_help_and_type() -> None:
    found = families(READING)
    assert set(found) == set(METRICS)
    assert {(one.type, bool(one.documentation)) for one in found.values()} == {("gauge", True)}


def test_the_values_and_their_labels() -> None:
    found = {name: family.samples for name, family in families(READING).items()}
    progress = found["hangcheck_last_progress_timestamp_seconds"]
    assert [(one.labels, one.value) for one in progress] == [
        ({"run": "run", "rank": "2"}, 1_790_000_001.0),
        ({"run": "run", "rank": "10"}, 1_790_000_002.5),
    ]
    assert found["hangcheck_stall_seconds"][0].value == 61.25
    assert found["hangcheck_watching"][0].value == 1
    assert found["hangcheck_exit_code"][0].value == -9


@pytest.mark.parametrize("kind", [None, *get_args(VerdictKind)])
def test_the_state_is_that_of_the_contract(kind: VerdictKind | None) -> None:
    (state,) = families(RunReading(run_id="r", standing=kind, written=1.0))[
        "hangcheck_state"
    ].samples
    assert state.value == {"suspect": 1, "hang": 2, "dead": 3}.get(kind or "", 0)


def test_before_its_end_a_run_has_no_exit_code() -> None:
    assert "hangcheck_exit_code" not in families(RunReading(run_id="r", written=1.0))


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb", "\\n", "über", "{}=,"])
def test_a_run_may_be_called_anything(name: str) -> None:
    (state,) = families(RunReading(run_id=name, written=1.0))["hangcheck_state"].samples
    assert state.labels == {"run": name}
