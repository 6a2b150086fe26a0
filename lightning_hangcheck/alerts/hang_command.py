"""`--on-hang-exec`: a line of the user's for the shell, run when a hang is found."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_hangcheck.files.atomic import NEW_FILE, PRIVATE_FILE
from lightning_hangcheck.look.programs import ChildLate, exit_code_of
from lightning_hangcheck.settings import ONLY_OF_RUN, PREFIX
from lightning_hangcheck.time_limit import NoAnswer, within

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lightning_hangcheck.alerts.asked_for import HangNews

COMMAND_LIMIT_S = 60.0
"""Enough to call a service or to ask a scheduler, too little for a job of its own."""
OPEN_LIMIT_S = 2.0
"""For the file of its output; storage that does not answer must not keep the command from it."""
OUTPUT_FILE = "on-hang-exec.txt"


def run_hang_command(
    line: str,
    news: HangNews,
    environment: Mapping[str, str],
    time_limit_s: float = COMMAND_LIMIT_S,
) -> str:
    """Run it to its end; its whole process group ends with it, or at the limit.

    Args:
        line: For ``/bin/sh -c``.
        news: What it is told of in its environment.
        environment: The rest of that.
        time_limit_s: Seconds.

    Returns:
        What went wrong, in one sentence; empty if nothing did.
    """
    output, where = _open_output(news)
    given = environment_of(news, environment)
    try:
        code = exit_code_of(["/bin/sh", "-c", line], time_limit_s, given, output)
    except ChildLate:
        return f"the command of --on-hang-exec was ended after {time_limit_s:g} s; {where}"
    except OSError as error:
        return f"the command of --on-hang-exec cannot be started ({error.strerror})"
    finally:
        os.close(output)
    if code == 0:
        return ""
    return f"the command of --on-hang-exec failed (exit code {code}); {where}"


def environment_of(news: HangNews, environment: Mapping[str, str]) -> dict[str, str]:
    """What the command finds in its environment: the user's, without our secrets, and the news."""
    told = {
        "CAUSE": news.cause,
        "CULPRITS": ",".join(map(str, news.culprits)),
        "KIND": news.kind,
        "REPORT": news.report_file,
        "RUN_DIR": news.run_dir,
        "SUMMARY": news.text,
        "VERDICT": news.verdict_file,
    }
    kept = {name: value for name, value in environment.items() if name not in ONLY_OF_RUN}
    return kept | {f"{PREFIX}{name}": value.replace("\0", " ") for name, value in told.items()}


def _open_output(news: HangNews) -> tuple[int, str]:
    """Open a new file beside the verdict's evidence, and say where; nothing where there is none."""
    path = Path(news.run_dir, "evidence", str(news.number), OUTPUT_FILE)
    flags = os.O_WRONLY | os.O_APPEND | NEW_FILE
    try:
        return within(OPEN_LIMIT_S, lambda: os.open(path, flags, PRIVATE_FILE)), (
            f"what it printed is in {path}"
        )
    except (OSError, NoAnswer):
        return os.open(os.devnull, os.O_WRONLY), "what it printed could not be kept"
