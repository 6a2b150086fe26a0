"""`--notify` and `--on-hang-exec` in a real run: told once, in time, and no secret left behind."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from alerts.receiver import receiving
from prometheus_client.parser import text_string_to_metric_families
from watch.launched import LONGEST_RUN_S, python, run, verdict_of

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.real
LEAK = "xleakx"
DEAF = """import os, pathlib
assert not {'HANGCHECK_NOTIFY', 'HANGCHECK_ON_HANG_EXEC'} & set(os.environ)
pathlib.Path('pid').write_text(str(os.getpid()))"""
STUCK = "import threading\none = threading.Lock()\none.acquire()\none.acquire()"
HASTE = ("--set", "idle_after=4", "--stall-timeout", "4")
ON_HANG = """env > told.txt
echo once >> times.txt
until grep -q 'state.* 2$' job.prom; do sleep 0.1; done
cp job.prom seen.prom
kill -KILL "$(cat pid)"
"""


def metrics_of(file: Path) -> dict[str, float]:
    """Of a run of one rank, by name."""
    families = text_string_to_metric_families(file.read_text())
    return {sample.name: sample.value for family in families for sample in family.samples}


def test_a_hang_is_told_once_to_everybody(tmp_path: Path) -> None:
    """The job itself hears nothing of whom its hangs are told to."""
    pytest.importorskip("apprise", reason="the extra `notify` is not installed")
    with receiving() as server:
        ended = run(
            tmp_path,
            python(f"{DEAF}\n{STUCK}"),
            *HASTE,
            *("--on-hang-exec", ON_HANG, "--prometheus", "job.prom"),
            HANGCHECK_NOTIFY=f"json://{server.address}/{LEAK}",
        )
    assert ended.returncode == 137, ended.stderr
    (message,), folder = server.got, str(tmp_path / "run")
    assert f"report: {folder}/report.html" in message["message"]
    given = dict(
        line.split("=", 1)
        for line in (tmp_path / "told.txt").read_text().splitlines()
        if line.startswith("HANGCHECK_")
    )
    assert (given["HANGCHECK_KIND"], given["HANGCHECK_RUN_DIR"]) == ("hang", folder)
    assert message["title"].startswith("HANG ")
    assert "HANGCHECK_NOTIFY" not in given
    assert (tmp_path / "times.txt").read_text() == "once\n"
    seen, after = (metrics_of(tmp_path / name) for name in ("seen.prom", "job.prom"))
    assert (seen["hangcheck_state"], seen["hangcheck_watching"]) == (2, 1)
    last = {"hang": 2, "dead": 3}[verdict_of(tmp_path / "run").verdict]
    assert (after["hangcheck_state"], after["hangcheck_watching"]) == (last, 0)
    assert after["hangcheck_stall_seconds"] > seen["hangcheck_stall_seconds"] > 3
    assert 0 < time.time() - after["hangcheck_last_progress_timestamp_seconds"] < LONGEST_RUN_S
    assert after["hangcheck_exit_code"] == -9
    left = [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
    assert LEAK.encode() not in b"".join([*left, ended.stderr.encode()])
