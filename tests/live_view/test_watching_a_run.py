"""`hangcheck watch` beside a real `hangcheck run`, from its first rank to its end."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from processes import PATIENCE_S, end, until

if TYPE_CHECKING:
    from pathlib import Path

HANGCHECK = (sys.executable, "-m", "lightning_hangcheck")
RANK = """
import sys, time
from pathlib import Path
import lightning_hangcheck as hc

hc.checkpoint("Model created", number=5)
while not Path(sys.argv[1]).exists():
    hc.beat()
    time.sleep(0.05)
"""


@pytest.mark.real
def test_it_follows_a_run_to_its_end_and_ends_with_it(tmp_path: Path) -> None:
    folder, go_on = tmp_path / "run", tmp_path / "end"
    run = subprocess.Popen(
        [*HANGCHECK, "run", "--run-dir", folder, "--", sys.executable, "-c", RANK, go_on],
        env={**os.environ, "RANK": "0", "WORLD_SIZE": "1", "HANGCHECK_CONSOLE": "off"},
    )
    log = tmp_path / "watch.log"
    try:
        until((folder / "run.json").exists, "the run to begin")
        with log.open("w") as file:
            watch = subprocess.Popen([*HANGCHECK, "watch", folder], stdout=file)
        try:
            until(lambda: "5: Model created" in log.read_text(), "the rank's checkpoint to be seen")
            go_on.touch()
            assert run.wait(PATIENCE_S) == 0
            assert watch.wait(PATIENCE_S) == 0
        finally:
            end(watch)
    finally:
        end(run)
    text = log.read_text()
    assert "5: Model created" in text
    assert text.count("the run has ended") == 1
    assert "exit code 0" in text
