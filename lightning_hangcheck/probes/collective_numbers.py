"""How far a rank's collectives have come: two numbers a group, asked while it is silent otherwise.

Only torch's counts are asked for, no call sites: collecting those may wait for the interpreter
lock. They go on where the record itself drops what has ended, as NCCL's does.
"""

from __future__ import annotations

import http.client
import time
from typing import TYPE_CHECKING

import msgspec

from lightning_hangcheck.model.decoders import json_decoder
from lightning_hangcheck.probes.flight_record import HANDLERS, ask_server
from lightning_hangcheck.session.collectives.collective_notes import noted_messages

if TYPE_CHECKING:
    from pathlib import Path

Numbers = dict[str, tuple[int, int]]
"""By group, the numbers of the operation that the rank entered last and of the one that ended
last; under ``messages`` how many it has posted to send and to receive, which gloo's record leaves
out where they block."""
COUNTS_ONLY = "includecollectives=false&includestacktraces=false"
"""NCCL's recorder obeys it; gloo's of torch 2.13 gives its whole record all the same."""


class _Status(msgspec.Struct):
    last_enqueued_collective: int = -1
    last_completed_collective: int = -1


class _Counts(msgspec.Struct):
    pg_status: dict[str, _Status] = {}


def collective_numbers(path: Path, time_limit_s: float) -> Numbers:
    """Ask a rank's worker server how far its collectives have come, and read its own notes.

    Args:
        path: The server's unix socket.
        time_limit_s: Seconds for all requests together.

    Returns:
        Nothing of a recorder that does not answer, or does not count.
    """
    deadline = time.monotonic() + time_limit_s
    found: Numbers = {}
    for handler in HANDLERS:
        try:
            answer = ask_server(path, f"{handler}?{COUNTS_ONLY}", deadline)
            counts = json_decoder(_Counts, strict=False).decode(answer)
        except (OSError, http.client.HTTPException, msgspec.MsgspecError):
            continue
        for group, status in counts.pg_status.items():
            numbers = (status.last_enqueued_collective, status.last_completed_collective)
            found[f"{handler} {group}"] = numbers
    posted = noted_messages(path)
    if posted is not None:
        found["messages"] = (sum(posted.sent.values()), sum(posted.received.values()))
    return found
