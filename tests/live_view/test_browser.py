"""`hangcheck watch --tui` by its keys: choose a rank, see its stack, filter, pause."""

from __future__ import annotations

import asyncio
from datetime import datetime, timezone

import pytest

pytest.importorskip("textual", reason="the extra `tui` is not installed")

from textual.widgets import DataTable, Input, Static

from lightning_hangcheck.cli.main import invoke
from lightning_hangcheck.live_view.browser import RunBrowser
from lightning_hangcheck.live_view.rank_now import RankNow
from lightning_hangcheck.live_view.rank_stack import stack_lines
from lightning_hangcheck.live_view.view_text import RunNow
from lightning_hangcheck.model.verdict import StackGroup, Verdict

AT = "2026-11-20T10:24:16.000Z"
HOSTILE = "[red]\x1b[2Jfeed"
HANG = Verdict(
    verdict="hang",
    run_id="r",
    command="c",
    started_at=AT,
    detected_at=AT,
    world_size=3,
    culprits=(1,),
    summary=f"rank 1 is stuck in {HOSTILE}",
    stack_groups=(
        StackGroup(id=0, process="rank", ranks="0,2", count=2, frames=("all_reduce (c10d.py:1)",)),
        StackGroup(id=1, process="rank", ranks="1", count=1, frames=(f"{HOSTILE} (train.py:88)",)),
    ),
)
NOW = RunNow(
    shown_folder="run",
    at=datetime(2026, 11, 20, 10, 30, tzinfo=timezone.utc),
    status="3 of 3 ranks run here",
    verdict=HANG,
    ranks=(
        RankNow(rank=1, standing="stuck", culprit=True, waits_for=HOSTILE),
        RankNow(rank=0, standing="waits", waits_for="rank 1"),
        RankNow(rank=2, standing="waits", waits_for="rank 1"),
    ),
)


def shown(app: RunBrowser, place: str) -> str:
    return str(app.query_one(place, Static).render())


def test_a_rank_is_chosen_by_keys_and_its_stack_shown() -> None:
    async def use() -> None:
        app = RunBrowser(NOW, lambda: NOW)
        async with app.run_test(size=(80, 24)) as pilot:
            await pilot.pause()
            assert app.query_one(DataTable).row_count == 3
            assert r"HANG  rank 1 is stuck in [red]\x1b[2Jfeed" in shown(app, "#head")
            assert r"[red]\x1b[2Jfeed (train.py:88)" in shown(app, "#frames")
            await pilot.press("down")
            await pilot.pause()
            assert shown(app, "#frames").startswith("rank 0, as 1 other:")
            assert "all_reduce (c10d.py:1)" in shown(app, "#frames")

    asyncio.run(use())


def test_rows_are_filtered_by_their_text_and_shown_again() -> None:
    async def use() -> None:
        app = RunBrowser(NOW, lambda: NOW)
        async with app.run_test(size=(80, 24)) as pilot:
            await pilot.press("slash", *"stuck", "enter")
            await pilot.pause()
            assert app.query_one(DataTable).row_count == 1
            await pilot.press("escape")
            await pilot.pause()
            assert app.query_one(Input).value == ""
            assert app.query_one(DataTable).row_count == 3

    asyncio.run(use())


def test_paused_it_keeps_what_is_shown() -> None:
    async def use() -> None:
        app = RunBrowser(NOW, lambda: NOW)
        async with app.run_test(size=(80, 24)) as pilot:
            await pilot.press("p")
            await pilot.pause()
            assert "paused: p goes on" in shown(app, "#head")
            await pilot.press("p")
            await pilot.pause()
            assert "paused" not in shown(app, "#head")
            await pilot.press("q")
        assert app.return_code == 0

    asyncio.run(use())


def test_without_a_terminal_the_way_out_is_named(
    tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["watch", str(tmp_path_factory.mktemp("run")), "--tui"]) == 2
    assert "--tui needs a terminal; leave it out" in capsys.readouterr().err


def test_of_a_rank_without_a_stack_it_is_said_when_one_is_taken() -> None:
    assert stack_lines(None, 3) == ["rank 3: no stack was taken yet; a suspicion takes one"]
    assert stack_lines(HANG, 3) == ["rank 3: no stack was taken yet; a suspicion takes one"]
