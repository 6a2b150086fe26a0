"""A program that talks with torchrun's store for a sidecar, which never loads torch itself.

It gets the store's host and port and a prefix as arguments, and does what it reads on its standard
input until that is closed. Whoever started it ends it when an answer is late, and may start
another.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import msgspec

from lightning_hangcheck.errors import MeetingFailed
from lightning_hangcheck.files.apart import let_go_of_streams
from lightning_hangcheck.hooks.rendezvous.places import StorePlace
from lightning_hangcheck.nodes.store_place import (
    CONNECTED_WITHIN_S,
    Answer,
    Request,
    read_message,
    write_message,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str]) -> int:
    """Answer requests until nobody asks any more."""
    host, port, prefix = arguments
    # torch prints what it likes, on these streams, too
    asked, answers = os.dup(0), os.dup(1)
    let_go_of_streams()
    try:
        place = StorePlace.of_agent(host, int(port), prefix, CONNECTED_WITHIN_S)
    except (MeetingFailed, ImportError) as error:
        write_message(answers, msgspec.msgpack.encode(Answer(trouble=str(error))))
        return 1
    write_message(answers, msgspec.msgpack.encode(Answer()))
    while (data := read_message(asked, None)) is not None:
        request = msgspec.msgpack.decode(data, type=Request)
        write_message(answers, msgspec.msgpack.encode(_answer(place, request)))
    return 0


def _answer(place: StorePlace, request: Request) -> Answer:
    try:
        if request.value is None:
            return Answer(value=place.look(request.key))
        place.post(request.key, request.value)
    except MeetingFailed as error:
        return Answer(trouble=str(error))
    return Answer()


if __name__ == "__main__":
    code = main(sys.argv[1:])
    os._exit(code)  # threads of torch's may hold the interpreter's end up
