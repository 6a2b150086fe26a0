"""quickstart's last word: where the verdict lies, and whether it is the expected one."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Protocol

import check_verdict
import pytest

from lightning_hangcheck.model.codec import encode
from lightning_hangcheck.model.verdict import LastCheckpoint, RankState, Verdict

if TYPE_CHECKING:
    from pathlib import Path

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


class Check(Protocol):
    """Calls the script, and gives its exit code and what it said."""

    def __call__(self, folder: Path, *words: str) -> tuple[int, str, str]: ...


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Check:
    def run(folder: Path, *words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["check_verdict.py", str(folder), *words])
        code = check_verdict.main()
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    (tmp_path / "verdict.json").write_bytes(encode(VERDICT))
    return tmp_path


def test_expected_verdict(run_folder: Path, check: Check) -> None:
    wanted = ["--verdict", "hang", "--cause", "rank_stalled", "--culprit", "1"]
    code, said, _ = check(run_folder, *wanted)
    assert code == 0
    assert str(run_folder / "verdict.json") in said
    assert "as expected: hang. rank 1 is stuck." in said


@pytest.mark.parametrize(
    ("words", "difference"),
    [
        ("--verdict finished", "the verdict is 'hang', not 'finished'"),
        ("--verdict hang --cause spinning", "the cause is 'rank_stalled', not 'spinning'"),
        ("--verdict hang --culprit 0", "the culprits are (1,), not rank 0"),
        ("--verdict hang --checkpoint 12", "rank 1 did not pass checkpoint 12 last"),
    ],
)
def test_another_verdict_is_said_to_be_one(
    run_folder: Path, check: Check, words: str, difference: str
) -> None:
    code, _, error = check(run_folder, *words.split())
    assert (code, error) == (1, f"not as expected: {difference}\n")


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]"])
def test_no_readable_verdict_is_one_sentence(
    tmp_path: Path, check: Check, content: bytes | None
) -> None:
    if content is not None:
        (tmp_path / "verdict.json").write_bytes(content)
    code, _, error = check(tmp_path, "--verdict", "hang")
    assert code == 1
    assert error.startswith("there is no readable verdict")
    assert error.count("\n") == 1
