"""A hub name: fetched where there is a hub, else one sentence within a time limit."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import socket
import threading
from typing import TYPE_CHECKING

import pytest
from hooks.launching import python

from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.hooks.plan import fetch_config

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytest.importorskip("huggingface_hub")
NAME = "ada/tiny-llama"
CONFIG = json.dumps({"model_type": "llama"}).encode()
LIMIT_S = 6.0
PROGRAM = f"""
import sys
from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.hooks.plan import fetch_config
import huggingface_hub
try:
    print(fetch_config({NAME!r}, {LIMIT_S}).read_text())
except BadUsage as error:
    print(error)
"""


class Hub(http.server.BaseHTTPRequestHandler):
    """A hub with one file."""

    def do_HEAD(self) -> None:
        found = self.path == f"/{NAME}/resolve/main/config.json"
        self.send_response(200 if found else 404)
        self.send_header("ETag", '"0123456789abcdef0123456789abcdef01234567"')
        self.send_header("X-Repo-Commit", "0123456789abcdef0123456789abcdef01234567")
        self.send_header("Content-Length", str(len(CONFIG)))
        self.end_headers()

    def do_GET(self) -> None:
        self.do_HEAD()
        self.wfile.write(CONFIG)

    def log_message(self, *_: object) -> None:
        """Silent."""


@contextlib.contextmanager
def hub() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


@contextlib.contextmanager
def silent_server() -> Iterator[str]:
    """Its kernel accepts, and nobody ever answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def fetch(endpoint: str, folder: Path, **environment: str) -> str:
    """What a process of its own gets: the hub's library reads its environment when imported."""
    ours = {"HF_ENDPOINT": endpoint, "HF_HOME": str(folder), "HF_HUB_OFFLINE": "0"}
    ours |= {"NO_PROXY": "127.0.0.1", **environment}
    said = python("-c", PROGRAM, environment={**os.environ, **ours})
    assert said.returncode == 0, said.stderr
    return said.stdout.removesuffix("\n")


def test_a_config_is_fetched_once_and_then_had_offline(tmp_path: Path) -> None:
    with hub() as endpoint:
        assert fetch(endpoint, tmp_path) == CONFIG.decode()
    assert fetch(endpoint, tmp_path, HF_HUB_OFFLINE="1") == CONFIG.decode()


@pytest.mark.parametrize("offline", ["0", "1"])
def test_without_network_one_sentence_says_the_way_out(tmp_path: Path, offline: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        endpoint = f"http://127.0.0.1:{closed.getsockname()[1]}"
    answer = fetch(endpoint, tmp_path, HF_HUB_OFFLINE=offline)
    assert answer.startswith(f"{NAME} is no folder here, and its config.json cannot be had")
    assert "\n" not in answer
    assert f"hf download {NAME} config.json --local-dir DIR" in answer


def test_a_hub_that_never_answers_is_given_up(tmp_path: Path) -> None:
    with silent_server() as endpoint:
        answer = fetch(endpoint, tmp_path)
    assert "config.json cannot be had from the hub" in answer


@pytest.mark.parametrize("name", ["./no/such/folder", "a/b/c", "/no/config.json", "a b", ""])
def test_a_path_that_is_not_there_is_not_asked_of_the_hub(name: str) -> None:
    with pytest.raises(BadUsage, match="there is no folder or file"):
        fetch_config(name)
