"""Exit codes in words."""

from __future__ import annotations

import pytest

from lightning_hangcheck.reading.exit_codes import ending_signal_of, exit_code_in_words


@pytest.mark.parametrize("code", [137, -9])
def test_a_signal_is_named_with_what_usually_sends_it(code: int) -> None:
    assert exit_code_in_words(code) == (
        "137: killed by SIGKILL (usually the kernel's out-of-memory killer, or somebody's kill -9)"
    )
    assert ending_signal_of(code) == 9


def test_a_signal_of_which_nothing_is_known_is_named_alone() -> None:
    assert exit_code_in_words(-10) == "138: killed by SIGUSR1"


def test_what_a_shell_could_not_run_is_said() -> None:
    assert exit_code_in_words(127) == "127: a command was not found"


@pytest.mark.parametrize("code", [0, 1, 2, 75, 255])
def test_a_programs_own_code_stays_a_number(code: int) -> None:
    assert exit_code_in_words(code) == str(code)
    assert ending_signal_of(code) is None
