"""What is sent where a job hangs, to whom, without an address ever being shown; and its metrics."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import msgspec
import psutil
import pytest
from alerts.receiver import receiving
from processes import ending, is_alive, until
from prometheus_client.parser import text_string_to_metric_families

from lightning_hangcheck.alerts import (
    METRICS,
    AlertsAskedFor,
    Delivery,
    HangNews,
    apprise_packages,
    metrics_text,
    notify,
    run_hang_command,
)
from lightning_hangcheck.cli.run_command import run_watched
from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.isolation.command import environment_of_module, own_command
from lightning_hangcheck.model.slugs import VerdictKind
from lightning_hangcheck.settings import Settings

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

LEAK = "xleakx"
DOCS = Path(__file__).parents[2] / "docs"
USERS = {"PATH": "/usr/bin:/bin", "TOKEN": "of-the-user", "HANGCHECK_NOTIFY": "slack://secret"}


def start(delivery: Delivery) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        own_command("lightning_hangcheck.alerts"),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment_of_module(),
        start_new_session=True,
    )
    process.stdin.write(msgspec.json.encode(delivery))
    process.stdin.close()
    process.stdin = None
    return process


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


def test_each_way_is_tried_whatever_becomes_of_the_others(tmp_path: Path) -> None:
    pytest.importorskip("apprise", reason="the extra `notify` is not installed")
    with receiving() as gone:
        pass
    with receiving() as people:
        addresses = (f"json://me:{LEAK}@{gone.address}/{LEAK}", f"json://{people.address}/{LEAK}")
        asked_for = AlertsAskedFor(notify=addresses, on_hang_exec="exit 7")
        process = start(Delivery(asked_for, news(tmp_path)))
        with ending(process):
            _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    (message,) = people.got
    assert message["title"] == "HANG rank_stalled in run"
    assert message["message"].startswith("HANG  rank 1 stands still")
    assert message["message"].endswith(f"report: {tmp_path}/report.html")
    lines = sorted(line.partition("] ")[2] for line in said.decode().splitlines())
    assert [line.partition(" (")[0] for line in lines] == [
        "notify address 1",
        "the command of --on-hang-exec failed",
    ]
    assert lines[0].startswith("notify address 1 (json://) was not reached: ")
    assert LEAK.encode() not in said


def test_the_command_finds_the_news_and_what_it_prints_is_kept(tmp_path: Path) -> None:
    """It has the user's own variables, too, but no address that messages go to."""
    trouble = run_hang_command("env; echo trouble >&2; exit 7", news(tmp_path), USERS)
    file = tmp_path / "evidence" / "1" / "on-hang-exec.txt"
    assert trouble == (
        f"the command of --on-hang-exec failed (exit code 7); what it printed is in {file}"
    )
    *variables, last = printed(tmp_path).splitlines()
    assert last == "trouble"
    told = dict(line.split("=", 1) for line in variables)
    of_the_shell = ("PWD", "SHLVL", "_", "OLDPWD")
    assert {name: told[name] for name in told if name not in of_the_shell} == {
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
    trouble = run_hang_command(f"touch {tmp_path}/done; false", news(tmp_path, None), USERS)
    assert trouble.endswith("(exit code 1); what it printed could not be kept")
    assert (tmp_path / "done").exists()


def test_one_that_does_not_answer_holds_up_nobody(tmp_path: Path) -> None:
    pytest.importorskip("apprise", reason="the extra `notify` is not installed")
    with receiving(silent=True) as silent, receiving() as other:
        addresses = [f"json://{server.address}/{LEAK}" for server in (silent, other)]
        troubles = notify(addresses, news(tmp_path), time_limit_s=3.0)
    assert troubles == ["notify address 1 (json://) was not reached: no answer within 3 s"]
    assert len(other.got) == 1


@pytest.mark.parametrize(
    ("address", "named"),
    [
        (f"nosuch://{LEAK}", "notify address 2 (nosuch://)"),
        (LEAK, "notify address 2"),
        (f"{LEAK}@x://y", "notify address 2"),
    ],
)
def test_an_address_that_apprise_does_not_know_is_refused_at_the_start(
    address: str, named: str
) -> None:
    """What is no service is not shown as one."""
    pytest.importorskip("apprise", reason="the extra `notify` is not installed")
    with pytest.raises(BadUsage) as refusal:
        apprise_packages(["json://127.0.0.1", address])
    assert str(refusal.value).startswith(f"{named} is not an address")
    assert LEAK not in str(refusal.value)


def test_without_apprise_the_start_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)
    with pytest.raises(BadUsage) as refusal:
        run_watched(["true"], Settings(), ("json://127.0.0.1",))
    assert "pip install 'lightning-hangcheck[notify]'" in str(refusal.value)


def families(**facts: Any) -> dict[str, Metric]:
    text = metrics_text(**{"run_id": "run", "written": 1.0, **facts}).decode()
    return {one.name: one for one in text_string_to_metric_families(text)}


def test_every_metric_has_help_type_value_and_labels() -> None:
    progress = {10: 1_790_000_002.5, 2: 1_790_000_001.0}
    found = families(stall_s=61.25, progress=progress, exit_code=-9)
    assert set(found) == set(METRICS)
    assert {(one.type, bool(one.documentation)) for one in found.values()} == {("gauge", True)}
    samples = {name: family.samples for name, family in found.items()}
    told = samples["hangcheck_last_progress_timestamp_seconds"]
    assert [(one.labels, one.value) for one in told] == [
        ({"run": "run", "rank": "2"}, 1_790_000_001.0),
        ({"run": "run", "rank": "10"}, 1_790_000_002.5),
    ]
    assert samples["hangcheck_stall_seconds"][0].value == 61.25
    assert samples["hangcheck_watching"][0].value == 1
    assert samples["hangcheck_exit_code"][0].value == -9


@pytest.mark.parametrize("kind", [None, *get_args(VerdictKind)])
def test_the_state_is_that_of_the_contract(kind: VerdictKind | None) -> None:
    """Before its end a run has no exit code."""
    found = families(standing=kind)
    (state,) = found["hangcheck_state"].samples
    assert state.value == {"suspect": 1, "hang": 2, "dead": 3}.get(kind or "", 0)
    assert "hangcheck_exit_code" not in found


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb", "\\n", "über", "{}=,"])
def test_a_run_may_be_called_anything(name: str) -> None:
    (state,) = families(run_id=name)["hangcheck_state"].samples
    assert state.labels == {"run": name}


def test_the_rules_name_only_metrics_that_are_written() -> None:
    yaml = pytest.importorskip("yaml")
    (group,) = yaml.safe_load((DOCS / "examples" / "hangcheck-alerts.yml").read_text())["groups"]
    rules = group["rules"]
    assert len({rule["alert"] for rule in rules}) == len(rules) == 5
    for rule in rules:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        named = set(re.findall(r"hangcheck_\w+", rule["expr"]))
        assert named
        assert named <= set(METRICS), rule["alert"]
        shown = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
        assert shown <= {"run", "rank", "instance"}


def test_every_metric_is_on_the_page_and_no_other() -> None:
    page = (DOCS / "alerts.md").read_text()
    assert set(re.findall(r"^\| `(hangcheck_\w+)", page, re.MULTILINE)) == set(METRICS)
