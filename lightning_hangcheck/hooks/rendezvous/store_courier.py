"""A program that talks with a store of torch's for a sidecar, which never loads torch itself.

It gets as arguments whether to serve the store or to connect to it, its host and port and a prefix,
and does what it reads on its standard
input until that is closed. Whoever started it ends it when an answer is late, and may start
another.
"""

from __future__ import annotations

import os
import socket
import sys
from typing import TYPE_CHECKING

import msgspec

from lightning_hangcheck.errors import MeetingFailed
from lightning_hangcheck.files.apart import let_go_of_streams
from lightning_hangcheck.hooks.rendezvous.offered_store import offered_store
from lightning_hangcheck.hooks.rendezvous.places import StorePlace
from lightning_hangcheck.nodes.store_place import (
    CONNECTED_WITHIN_S,
    SERVE,
    Answer,
    Request,
    read_message,
    write_message,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str]) -> int:
    """Answer requests until nobody asks any more."""
    how, host, port, prefix = arguments
    reach = offered_store if how == SERVE else StorePlace.of_agent
    # torch prints what it likes, on these streams, too
    asked, answers = os.dup(0), os.dup(1)
    let_go_of_streams()
    try:
        _resolve(host)
        place = reach(host, int(port), prefix, CONNECTED_WITHIN_S)
    except (MeetingFailed, ImportError) as error:
        write_message(answers, msgspec.msgpack.encode(Answer(trouble=str(error))))
        return 1
    write_message(answers, msgspec.msgpack.encode(Answer()))
    while (data := read_message(asked, None)) is not None:
        request = msgspec.msgpack.decode(data, type=Request)
        write_message(answers, msgspec.msgpack.encode(_answer(place, request)))
    return 0


def _resolve(host: str) -> None:
    """Say at once what torch would say after its time limit, and less plainly.

    Raises:
        MeetingFailed: Nobody here knows the host's address.
    """
    try:
        socket.getaddrinfo(host, None)
    except (OSError, UnicodeError) as error:
        raise MeetingFailed(
            f"MASTER_ADDR {host!r} does not resolve here ({error})",
            "give an address, or a name that every node knows: getent hosts NAME",
        ) from error


def _answer(place: StorePlace, request: Request) -> Answer:
    try:
        if request.value is None:
            return Answer(values=tuple(place.look_all(request.keys)))
        place.post(request.keys[0], request.value)
    except MeetingFailed as error:
        return Answer(trouble=str(error))
    return Answer()


if __name__ == "__main__":
    code = main(sys.argv[1:])
    os._exit(code)  # threads of torch's may hold the interpreter's end up
