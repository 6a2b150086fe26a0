"""`--notify` and `--on-hang-exec` in a real run: told once, in time, and no secret left behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from alerts.receiver import receiving
from watch.launched import python, run, verdict_of

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.real
LEAK = "xleakx"
STUCK = "import threading\none = threading.Lock()\none.acquire()\none.acquire()"
HASTE = ("--on-hang", "abort", "--abort-grace", "1", "--idle-after", "4", "--stall-timeout", "4")


def test_a_hang_is_told_once_to_everybody(tmp_path: Path) -> None:
    """The job itself hears nothing of whom its hangs are told to."""
    pytest.importorskip("apprise", reason="the extra `notify` is not installed")
    told = "env > told.txt; echo once >> times.txt"
    with receiving() as server:
        ended = run(
            tmp_path,
            python(f"import os\nassert 'HANGCHECK_NOTIFY' not in os.environ\n{STUCK}"),
            *HASTE,
            *("--on-hang-exec", told),
            HANGCHECK_NOTIFY=f"json://{server.address}/{LEAK}",
        )
    assert ended.returncode == 75, ended.stderr
    kind, folder = verdict_of(tmp_path / "run").verdict, str(tmp_path / "run")
    (message,) = server.got
    assert message["title"].startswith(f"{kind.upper()} ")
    assert f"report: {folder}/report.html" in message["message"]
    given = dict(
        line.split("=", 1)
        for line in (tmp_path / "told.txt").read_text().splitlines()
        if line.startswith("HANGCHECK_")
    )
    assert (given["HANGCHECK_KIND"], given["HANGCHECK_RUN_DIR"]) == (kind, folder)
    assert "HANGCHECK_NOTIFY" not in given
    assert (tmp_path / "times.txt").read_text() == "once\n"
    left = [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
    assert LEAK.encode() not in b"".join([*left, ended.stderr.encode()])
