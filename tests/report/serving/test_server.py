"""A run in a browser of this machine: real requests to a real server."""

from __future__ import annotations

import json
import re
import socket
import threading
from http.client import HTTPConnection, HTTPResponse, RemoteDisconnected
from typing import TYPE_CHECKING

import pytest

from lightning_hangcheck.model.codec import encode_pretty
from lightning_hangcheck.model.verdict import Edge, RankState, Verdict
from lightning_hangcheck.report.serving.run_pages import LIVE_S, RunPages, around_the_stall
from lightning_hangcheck.report.serving.server import ReportServer
from lightning_hangcheck.rundir.layout import RunFolder, prepare_run_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lightning_hangcheck.report.saved_run import SavedRun

HANG = Verdict(
    verdict="hang",
    run_id="r",
    command="python train.py",
    started_at="2026-11-20T10:23:01Z",
    detected_at="2026-11-20T10:24:16Z",
    stalled_since="2026-11-20T10:23:36Z",
    stalled_for_s=40.0,
    world_size=2,
    culprits=(1,),
    cause="rank_stalled",
    summary="rank 1 is stuck in wait_for_feed (train.py:88)",
    wait_for=(Edge("rank:0", "rank:1", "in all_reduce"),),
    ranks=(RankState(rank=0, state="waiting"), RankState(rank=1, state="stalled")),
)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return prepare_run_folder(RunFolder(tmp_path / "run"))


def _unjudged(saved: SavedRun) -> str:
    return saved.refused or "no verdict yet <b>\x1b[2J"


@pytest.fixture
def now_s() -> list[float]:
    """The time, which a test may set."""
    return [100.0]


@pytest.fixture
def server(folder: RunFolder, now_s: list[float]) -> Iterator[ReportServer]:
    with ReportServer(RunPages(folder, "run", _unjudged, clock=lambda: now_s[0])) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield made
        made.shutdown()
        thread.join(60)
        assert not thread.is_alive()


def _ask(
    server: ReportServer,
    name: str = "",
    *,
    token: str | None = None,
    method: str = "GET",
    **headers: str,
) -> tuple[HTTPResponse, str]:
    connection = HTTPConnection("127.0.0.1", server.server_port, timeout=120)
    path = f"/{server.token if token is None else token}/{name}"
    connection.request(method, path, headers=headers)
    response = connection.getresponse()
    body = response.read().decode()
    connection.close()
    return response, body


def test_the_page_and_what_is_around_it(server: ReportServer, folder: RunFolder) -> None:
    folder.verdict_file.write_bytes(encode_pretty(HANG))
    assert server.address == f"http://127.0.0.1:{server.server_port}/{server.token}/"
    response, body = _ask(server, "report.html")
    assert response.status == 200
    assert HANG.summary in body
    response, body = _ask(server)
    assert response.getheader("Content-Type") == "text/html; charset=utf-8"
    assert "open in Perfetto" in body
    assert "nothing leaves this machine" in body
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", body)
    assert response.getheader("Referrer-Policy") == "no-referrer"
    assert response.getheader("Cache-Control") == "no-store"
    response, body = _ask(server, "trace.json")
    names = [event["name"] for event in json.loads(body)["traceEvents"]]
    assert response.getheader("Content-Type") == "application/json"
    assert "hang" in names


def test_a_run_that_goes_on_is_followed(
    server: ReportServer, folder: RunFolder, now_s: list[float]
) -> None:
    """The state is another one every few seconds, and once there are verdicts with each of them."""
    marks = [json.loads(_ask(server, "state")[1])]
    assert "holds no run" in _ask(server, "report.html")[1]
    assert _ask(server, "trace.json")[0].status == 404
    assert json.loads(_ask(server, "state")[1]) == marks[0]
    line = '{"at":"2026-11-20T10:23:05Z","kind":"checkpoint","number":1,"name":"Script started"}\n'
    folder.journal(0, 0).write_text(line)
    now_s[0] += LIVE_S
    marks.append(json.loads(_ask(server, "state")[1]))
    _, body = _ask(server, "report.html")
    assert body == "<!DOCTYPE html><pre>no verdict yet &lt;b&gt;\\x1b[2J</pre>\n"
    folder.verdict_file.write_bytes(encode_pretty(HANG))
    marks.append(json.loads(_ask(server, "state")[1]))
    now_s[0] += LIVE_S
    assert json.loads(_ask(server, "state")[1]) == marks[-1]
    assert len({one["mark"] for one in marks}) == 3
    assert [bool(one["around"]) for one in marks] == [False, False, True]
    assert HANG.summary in _ask(server, "report.html")[1]
    assert _ask(server, "trace.json")[0].status == 200


@pytest.mark.parametrize(
    ("token", "name"),
    [
        ("", ""),
        ("", "report.html"),
        ("guessed", "report.html"),
        ("report.html", ""),
        (None, "verdict.json"),
        (None, "../run.json"),
        (None, "ranks/rank-0.jsonl"),
        (None, "/"),
    ],
)
def test_nothing_else_is_there(
    token: str | None, name: str, server: ReportServer, folder: RunFolder
) -> None:
    folder.verdict_file.write_bytes(encode_pretty(HANG))
    response, body = _ask(server, name, token=token)
    assert response.status == 404
    assert body == "404 Not Found\n"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1", "", "localhost"])
def test_a_foreign_name_for_this_machine_leads_nowhere(host: str, server: ReportServer) -> None:
    assert _ask(server, "report.html", Host=host)[0].status == 403


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS"])
def test_it_is_for_reading(method: str, server: ReportServer) -> None:
    assert _ask(server, method=method)[0].status == 501


def test_who_says_nothing_keeps_nobody_waiting(server: ReportServer, folder: RunFolder) -> None:
    """A client that sends half a request has a thread of its own."""
    folder.verdict_file.write_bytes(encode_pretty(HANG))
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=120) as mute:
        mute.sendall(b"GET /")
        assert _ask(server, "report.html")[0].status == 200


def test_too_many_at_once_are_turned_away(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setattr("lightning_hangcheck.report.serving.server.MOST_AT_ONCE", 0)
    crowded = request.getfixturevalue("server")
    with pytest.raises((RemoteDisconnected, ConnectionResetError)):
        _ask(crowded)


def test_where_a_trace_is_opened() -> None:
    """A quarter of the stall before and behind it, in nanoseconds since 1970."""
    assert around_the_stall(HANG) == "?visStart=1795170206000000000&visEnd=1795170266000000000"


def test_only_this_machine_is_served(server: ReportServer) -> None:
    assert server.socket.getsockname()[0] == "127.0.0.1"
    assert len(server.token) >= 43, "32 bytes that nobody can guess"
