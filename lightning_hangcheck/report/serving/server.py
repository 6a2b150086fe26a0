"""A web server for one person on this machine: behind a token, for reading, on loopback only."""

from __future__ import annotations

import secrets
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from threading import BoundedSemaphore
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import socket

    from lightning_hangcheck.report.serving.run_pages import Served

HOST = "127.0.0.1"
TOKEN_BYTES = 32
READ_LIMIT_S = 10.0
"""Of one read from a client: browsers send a request at once."""
MOST_AT_ONCE = 32
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'self'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""The address holds the token: it is told to nobody, and no other site may embed what is here."""


class Pages(Protocol):
    """What can be asked for."""

    def answer(self, name: str) -> Served | None:
        """Return what answers a name; None where there is nothing."""


class ReportServer(ThreadingHTTPServer):
    """Serves until it is shut down.

    Attributes:
        address: What to open, with its token.
    """

    daemon_threads = True

    def __init__(self, pages: Pages, port: int = 0) -> None:
        """Bind the port.

        Args:
            pages: What can be asked for.
            port: 0 for one that the kernel chooses.

        Raises:
            OSError: The port is in use, or not for us.
        """
        self.pages = pages
        self.token = secrets.token_urlsafe(TOKEN_BYTES)
        self._places = BoundedSemaphore(MOST_AT_ONCE)
        super().__init__((HOST, port), _Handler)
        self.address = f"http://{HOST}:{self.server_port}/{self.token}/"
        self.hosts = (f"{HOST}:{self.server_port}", f"localhost:{self.server_port}")

    def server_bind(self) -> None:
        """Bind without asking for the name of this machine: that may take seconds."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = HOST, self.server_address[1]

    def process_request_thread(
        self, request: socket.socket | tuple[bytes, socket.socket], client_address: object
    ) -> None:
        """Answer it in its thread, unless there are too many; then it is closed unanswered."""
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: a browser that went away while it was answered is no trouble."""


class _Handler(BaseHTTPRequestHandler):
    """One request; what is no GET is refused by the base with 501."""

    server: ReportServer
    timeout = READ_LIMIT_S
    server_version = "hangcheck"
    sys_version = ""
    error_message_format = "%(code)d %(message)s\n"
    error_content_type = "text/plain"

    def do_GET(self) -> None:
        """Answer who names this very host, so that no foreign name leads here, and the token."""
        if self.headers.get("Host", "") not in self.server.hosts:
            self.send_error(403, "another host was asked for")
            return
        first, _, name = self.path.partition("?")[0].removeprefix("/").partition("/")
        if not secrets.compare_digest(first.encode(), self.server.token.encode()):
            self.send_error(404)
            return
        served = self.server.pages.answer(name)
        if served is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Type", served.content_type)
        self.send_header("Content-Length", str(len(served.data)))
        self.end_headers()
        self.wfile.write(served.data)

    def end_headers(self) -> None:
        """Add what goes with every answer."""
        for name, value in HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Keep the terminal, and the token off it."""
