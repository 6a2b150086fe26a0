"""`hangcheck rehearse`: what it refuses before anything runs."""

from __future__ import annotations

import pytest

from lightning_hangcheck.cli.main import invoke


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "rehearse needs a command to run; write it behind two dashes"),
        (["--scene", "fire", "--", "torchrun", "x.py"], "there is no scene 'fire'; name one of"),
        (["--", "no-such-program", "x.py"], "'no-such-program' cannot be started"),
        (["--", "sh", "train.sh"], "cannot be rehearsed: sh is neither torchrun"),
        (["--ranks", "1", "--", "torchrun", "x.py"], "1 is not in the range 2<=x<=16"),
    ],
)
def test_bad_usage_is_one_sentence(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["rehearse", *words]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert says in printed.err
    assert printed.err.count("\n") == 1
