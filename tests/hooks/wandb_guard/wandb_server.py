"""A wandb server on this machine that answers, slowly or not, never, or resets every connection."""

from __future__ import annotations

import gzip
import json
import socket
import struct
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

Manner = Literal["answers", "mute", "resets"]
RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # struct linger: a close sends RST


class WandbServer:
    """Serves in this manner, each answer after a delay in seconds, until it is closed.

    A client may ask for another manner: ``GET /become/mute``.
    """

    def __init__(self, manner: Manner, delay: float = 0.0) -> None:
        self.manner: str = manner
        self.delay = delay
        self.closing = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    @property
    def environment(self) -> dict[str, str]:
        """What makes wandb use this server."""
        return {
            "WANDB_BASE_URL": f"http://127.0.0.1:{self._server.server_port}",
            "WANDB_API_KEY": "0" * 40,
            "WANDB_MODE": "online",
        }

    def close(self) -> None:
        self.closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        owner = self

        class Handler(_Handler):
            server_of_test = owner

        return Handler


class _Handler(BaseHTTPRequestHandler):
    server_of_test: WandbServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def handle(self) -> None:
        owner = self.server_of_test
        if owner.manner == "resets":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
            self.connection.close()
        elif owner.manner == "mute":
            owner.closing.wait()
        else:
            super().handle()

    def finish(self) -> None:
        if self.server_of_test.manner != "resets":
            super().finish()

    def do_GET(self) -> None:
        if self.path.startswith("/become/"):
            self.server_of_test.manner = self.path.rpartition("/")[2]
        self._answer({})

    def do_POST(self) -> None:
        owner, body = self.server_of_test, self._body()
        time.sleep(owner.delay)
        if owner.manner == "mute":
            owner.closing.wait()
            return
        asked = json.loads(body) if self.path.endswith("graphql") else {}
        self._answer({"data": _data(asked.get("variables") or {})})

    def _body(self) -> bytes:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body

    def _answer(self, content: Mapping[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _data(variables: Mapping[str, Any]) -> dict[str, Any]:
    """All that wandb 0.31 looks for in any answer on its way to a run."""
    who = {"id": "u", "entity": "me", "username": "me", "flags": "{}", "teams": {"edges": []}}
    project = {"id": "p", "name": "demo", "entity": {"id": "e", "name": "me"}}
    run = {"id": "r", "name": variables.get("name") or "abc", "displayName": "a run"}
    return {
        "viewer": who,
        "serverInfo": {"features": [], "cliVersionInfo": {"max_cli_version": "99.0.0"}},
        "upsertBucket": {"bucket": {**run, "config": "{}", "project": project}, "inserted": True},
        "model": {"bucket": None},
        "createRunFiles": {"runID": "r", "uploadHeaders": [], "files": []},
    }
