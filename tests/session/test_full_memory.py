"""Shared memory that is full: what is noted must not end the rank that notes it (SIGBUS)."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

SMALL = 'mount -t tmpfs -o size=256k none "$1" && shift && exec "$@"'
FILL = """
import sys
from pathlib import Path
room = Path(sys.argv[1])
def fill():
    with (room / "full").open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            pass
"""
NOTE_WHEN_FULL = f"""{FILL}
from lightning_hangcheck.session.collective_notes import CALLS_KEPT, CallNoter
from lightning_hangcheck.session.collective_notes import (
    MOST_PEERS, POSTED_KEPT, MessageCounter,
)
calls = CallNoter(room / "torch" / "7")
messages = MessageCounter(room / "torch" / "7")
fill()
for _ in range(max(CALLS_KEPT, POSTED_KEPT)):
    calls.note(sys._getframe())
for peer in range(MOST_PEERS + 1):
    messages.post_send(peer)
"""
BEGIN_WHEN_FULL = f"""{FILL}
from lightning_hangcheck.session.collective_notes import (
    MessageCounter, note_group, noted_messages,
)
server = room / "torch" / "7"
note_group(server, "0", [0, 1])
fill()
try:
    MessageCounter(server)
except OSError:
    assert noted_messages(server) is None
else:
    raise SystemExit("it found room where there is none")
"""


@pytest.mark.parametrize("code", [NOTE_WHEN_FULL, BEGIN_WHEN_FULL], ids=["later", "from the start"])
def test_memory_that_fills_up_ends_no_rank(tmp_path: Path, code: str) -> None:
    room = tmp_path / "room"
    room.mkdir()
    unshared = ["unshare", "--mount", "sh", "-c", SMALL, "sh", str(room)]
    if os.geteuid() != 0 or subprocess.run([*unshared, "true"], check=False).returncode != 0:
        pytest.skip("only root, and not in every container, can mount a small tmpfs")
    noting = [*unshared, sys.executable, "-c", code, str(room)]
    ended = subprocess.run(noting, check=False, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
