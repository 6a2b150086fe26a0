"""`--notify`: who gets what, and that no address is ever shown."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from alerts.receiver import receiving
from alerts.test_messenger import news

from lightning_hangcheck.alerts.messenger import named, notify, refuse_unknown
from lightning_hangcheck.cli.commands.run_command import run_watched
from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

LEAK = "xleakx"
apprise = pytest.importorskip("apprise", reason="the extra `notify` is not installed")


def test_everybody_gets_the_title_the_text_and_where_the_report_is(tmp_path: Path) -> None:
    with receiving() as one, receiving() as other:
        addresses = [f"json://{server.address}/{LEAK}" for server in (one, other)]
        assert notify(addresses, news(tmp_path)) == []
    for server in (one, other):
        (message,) = server.got
        assert message["title"] == "HANG rank_stalled in run"
        assert message["message"].startswith("HANG  rank 1 stands still")
        assert message["message"].endswith(f"report: {tmp_path}/report.html")


def test_one_that_does_not_answer_holds_up_nobody(tmp_path: Path) -> None:
    with receiving(silent=True) as silent, receiving() as other:
        addresses = [f"json://{server.address}/{LEAK}" for server in (silent, other)]
        troubles = notify(addresses, news(tmp_path), time_limit_s=3.0)
    assert troubles == ["notify address 1 (json://) was not reached: no answer within 3 s"]
    assert len(other.got) == 1


def test_one_that_is_not_there_is_named_without_its_address(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with receiving() as gone:
        pass
    troubles = notify([f"json://me:{LEAK}@{gone.address}/{LEAK}"], news(tmp_path))
    assert len(troubles) == 1
    assert troubles[0].startswith("notify address 1 (json://) was not reached")
    said = capfd.readouterr()
    assert LEAK not in f"{troubles}{said.out}{said.err}"


def test_an_address_that_apprise_does_not_know_is_refused_at_the_start() -> None:
    with pytest.raises(BadUsage) as refusal:
        refuse_unknown(["json://127.0.0.1", f"nosuch://{LEAK}"])
    assert str(refusal.value).startswith("notify address 2 (nosuch://) is not an address")
    assert LEAK not in str(refusal.value)


def test_without_apprise_the_start_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)
    with pytest.raises(BadUsage) as refusal:
        run_watched(["true"], Settings(), ("json://127.0.0.1",))
    assert "pip install 'lightning-hangcheck[notify]'" in str(refusal.value)


@pytest.mark.parametrize("address", [LEAK, f"{LEAK * 9}://x", f"{LEAK}@x://y"])
def test_what_is_no_service_is_not_shown_as_one(address: str) -> None:
    assert named(3, address) == "notify address 3"
