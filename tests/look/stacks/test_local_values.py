"""Local variables are read only where somebody asked, and leave their secrets in the process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from processes import PATIENCE_S, until

from lightning_hangcheck.look.py_spy import LONGEST_VALUE
from lightning_hangcheck.look.sample import Target, sample_all

if TYPE_CHECKING:
    from processes import RunningProgram, StartProgram

    from lightning_hangcheck.model.evidence import LocalValues

pytestmark = pytest.mark.real


def stands_in_load(running: RunningProgram) -> LocalValues | None:
    ((sample, gaps),) = sample_all([Target(pid=running.pid)], PATIENCE_S, with_values=(0,))
    assert gaps == ()
    last = sample.local_values[-1] if sample.local_values else None
    return last if last is not None and last.frame.function == "load" else None


def test_values_are_shown_only_on_request_short_and_without_secrets(program: StartProgram) -> None:
    running = program("holding_secrets.py")
    values = until(lambda: stands_in_load(running), "it to stand in load").values
    ((plain, _),) = sample_all([Target(pid=running.pid)], PATIENCE_S)
    assert plain.local_values == ()
    assert values["batch"] == "17"
    assert "data/train.bin" in values["path"]
    assert "xxxx" not in str(values)
    assert {name for name, value in values.items() if value == "[redacted]"} == {
        "api_token",
        "passphrase",
        "pw",
    }
    assert len(values["long"]) <= LONGEST_VALUE + len("...")
    # behind keys of dictionaries, second in a tuple, and in whose middle py-spy cuts a text
    assert "secret-" not in str(values)
    assert "text/html" in values["headers"]
    assert values["pair"].startswith('{"auth": [redacted]')
    assert values["cut"] == '"password=[redacted] ..."'
