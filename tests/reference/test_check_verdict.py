"""quickstart's last word: where the verdict lies, and whether it is the expected one."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import check_verdict
import pytest
from report.constructed import STALLED_SINCE, verdict

from lightning_hangcheck.model.codec import encode
from lightning_hangcheck.model.verdict import LastCheckpoint, RankState

if TYPE_CHECKING:
    from pathlib import Path

ROWS = tuple(
    RankState(rank=rank, last_checkpoint=LastCheckpoint(number, "Name", STALLED_SINCE))
    for rank, number in ((0, 12), (1, 11))
)
FOUND = encode(verdict("hang", culprits=(1,), cause="rank_stalled", summary="stuck", ranks=ROWS))


@pytest.mark.parametrize(
    ("words", "content", "code", "said"),
    [
        ("--verdict hang --cause rank_stalled --culprit 1", FOUND, 0, "as expected: hang. stuck."),
        ("--verdict finished", FOUND, 1, "the verdict is 'hang', not 'finished'"),
        (
            "--verdict hang --cause spinning",
            FOUND,
            1,
            "the cause is 'rank_stalled', not 'spinning'",
        ),
        ("--verdict hang --culprit 0", FOUND, 1, "the culprits are (1,), not rank 0"),
        ("--verdict hang --checkpoint 12", FOUND, 1, "rank 1 did not pass checkpoint 12 last"),
        ("--verdict hang", None, 1, "there is no readable verdict"),
        ("--verdict hang", b"{", 1, "there is no readable verdict"),
        ("--verdict hang", b"[]", 1, "there is no readable verdict"),
    ],
)
def test_a_verdict_is_as_expected_or_the_difference_is_one_sentence(
    words: str,
    content: bytes | None,
    code: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if content is not None:
        (tmp_path / "verdict.json").write_bytes(content)
    monkeypatch.setattr(sys, "argv", ["check_verdict.py", str(tmp_path), *words.split()])
    assert check_verdict.main() == code
    output = capsys.readouterr()
    assert said in (output.err if code else output.out)
    assert output.err.count("\n") == code
