"""`--on-hang-exec`: what the command is told, where its output goes, and that it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psutil
import pytest
from processes import is_alive, until

from lightning_hangcheck.alerts.messenger import HangNews, environment_of, run_hang_command

if TYPE_CHECKING:
    from pathlib import Path

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
