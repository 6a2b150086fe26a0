"""quickstart's last word: where the verdict lies, and whether it is the expected one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lightning_hangcheck.model.codec import encode
from lightning_hangcheck.model.verdict import LastCheckpoint, RankState, Verdict

SCRIPT = Path(__file__).parent.parent.parent / "scripts" / "check_verdict.py"
NOW = "2026-01-01T00:00:00Z"


def _row(rank: int, number: int) -> RankState:
    return RankState(rank=rank, last_checkpoint=LastCheckpoint(number, "Name", NOW))


VERDICT = Verdict(
    verdict="hang",
    run_id="run",
    command="train",
    started_at=NOW,
    detected_at=NOW,
    world_size=2,
    culprits=(1,),
    cause="rank_stalled",
    summary="rank 1 is stuck",
    ranks=(_row(0, 12), _row(1, 11)),
)


def _check(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), str(folder), *words],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    (tmp_path / "verdict.json").write_bytes(encode(VERDICT))
    return tmp_path


def test_expected_verdict(run_folder: Path) -> None:
    wanted = ["--verdict", "hang", "--cause", "rank_stalled", "--culprit", "1"]
    checked = _check(run_folder, *wanted)
    assert checked.returncode == 0
    assert str(run_folder / "verdict.json") in checked.stdout
    assert "as expected: hang. rank 1 is stuck." in checked.stdout


@pytest.mark.parametrize(
    ("words", "difference"),
    [
        ("--verdict finished", "the verdict is 'hang', not 'finished'"),
        ("--verdict hang --cause spinning", "the cause is 'rank_stalled', not 'spinning'"),
        ("--verdict hang --culprit 0", "the culprits are (1,), not rank 0"),
        ("--verdict hang --checkpoint 12", "rank 1 did not pass checkpoint 12 last"),
    ],
)
def test_another_verdict_is_said_to_be_one(run_folder: Path, words: str, difference: str) -> None:
    checked = _check(run_folder, *words.split())
    assert checked.returncode == 1
    assert checked.stderr == f"not as expected: {difference}\n"


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]"])
def test_no_readable_verdict_is_one_sentence(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "verdict.json").write_bytes(content)
    checked = _check(tmp_path, "--verdict", "hang")
    assert checked.returncode == 1
    assert "there is no readable verdict" in checked.stderr
    assert "Traceback" not in checked.stderr
