"""A real headless Chromium, spoken to over a pipe: no port is opened, no driver installed."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import time
from typing import TYPE_CHECKING, Any

from processes import end

if TYPE_CHECKING:
    from pathlib import Path

NAMES = (
    "chromium-headless-shell",
    "chrome-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
)
PATIENCE_S = 90.0
"""For anything that takes milliseconds on an idle machine; its start takes a second."""


def installed_browser() -> str | None:
    """The first Chromium of the PATH; Debian's package is chromium-headless-shell."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One Chromium with one page; the page's complaints, and the addresses that it asked for."""

    def __init__(self, program: str, profile: Path) -> None:
        to_read, self._to = os.pipe()
        self._from, to_write = os.pipe()
        # the browser reads from descriptor 3 and writes to 4
        moved = f'exec "$@" 3<&{to_read} 4>&{to_write}'
        self._process = subprocess.Popen(
            [
                *("bash", "-c", moved, "bash", program),
                *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
                *("--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"),
            ],
            pass_fds=(to_read, to_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self._unread = b""
        self._number = 0
        self._session = ""
        self._events: list[dict[str, Any]] = []
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self._attach()

    def close(self) -> None:
        """End it and all below it."""
        end(self._process)
        os.close(self._to)
        os.close(self._from)

    def open(self, page: Path, width: int) -> None:
        """Load a page from disk in a window of this width, and wait until it is there."""
        self.complaints, self.requests, self._events = [], [], []
        size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.call("Page.navigate", url=page.as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._take(self._read())

    def evaluate(self, expression: str) -> Any:
        """Run JavaScript in the page, and return what it comes to."""
        told = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command of the DevTools protocol, and return its answer."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return dict(answer["result"])
            self._take(answer)

    def _attach(self) -> None:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def _take(self, event: dict[str, Any]) -> None:
        self._events.append(event)
        told = event.get("params", {})
        if event.get("method") == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])
        elif event.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(told))
        elif event.get("method") == "Log.entryAdded" and told["entry"]["level"] == "error":
            self.complaints.append(told["entry"]["text"])
        elif event.get("method") == "Runtime.consoleAPICalled" and told["type"] == "error":
            self.complaints.append(json.dumps(told["args"]))

    def _read(self) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE_S
        while b"\0" not in self._unread:
            left = deadline - time.monotonic()
            ready, _, _ = select.select([self._from], [], [], max(0.0, left))
            data = os.read(self._from, 65_536) if ready else b""
            if not data:
                raise AssertionError("the browser does not answer")
            self._unread += data
        message, _, self._unread = self._unread.partition(b"\0")
        return dict(json.loads(message))
