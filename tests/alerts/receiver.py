"""A web server of the test's own that takes messages, as apprise's ``json://`` sends them."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


class Receiver(ThreadingHTTPServer):
    """Keeps what it got; with ``silent`` it takes a connection and never answers."""

    def __init__(self, *, silent: bool) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.daemon_threads = True
        self.bodies: list[bytes] = []
        self.silent = silent
        self.ended = threading.Event()

    @property
    def got(self) -> list[dict[str, Any]]:
        return [json.loads(body) for body in self.bodies]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.server.silent:
            self.server.ended.wait()
            return
        self.server.bodies.append(body)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """It says nothing."""


@contextmanager
def receiving(*, silent: bool = False) -> Iterator[Receiver]:
    """Serve until the test is done with it."""
    server = Receiver(silent=silent)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.ended.set()
        server.shutdown()
        thread.join()
        server.server_close()
