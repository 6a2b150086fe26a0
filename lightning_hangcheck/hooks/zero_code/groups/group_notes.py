"""Notes what torch's record leaves out: who belongs to which group, and who sends to whom.

``isend`` and ``irecv`` are watched, which ``batch_isend_irecv`` calls. So do ``send`` and ``recv``,
but not in torch 2.5, where these are watched too.
"""

from __future__ import annotations

import inspect
import os
import sys
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from lightning_hangcheck import log
from lightning_hangcheck.hooks.zero_code.wrapping import Call, by_name, wrap
from lightning_hangcheck.recorder.lifecycle import current
from lightning_hangcheck.session.collectives.collective_notes import MessageCounter, note_group

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path
    from types import ModuleType

    Post = Callable[[MessageCounter, int], None]

PACKAGE = "torch.distributed"


def instrument_notes(module: ModuleType) -> None:
    """Note the members of each group before it is made, and each message before it is posted.

    Messages only where nobody can hold the unwatched functions yet: torch compares what it is given
    with ``isend`` by identity (batch_isend_irecv).
    """
    maker = "_new_process_group_helper"
    if hasattr(module, maker):
        signature = inspect.signature(getattr(module, maker))

        @contextmanager
        def making(call: Call) -> Iterator[None]:
            _note_group(module, by_name(call, signature))
            yield

        wrap(module, maker, making)
    if hasattr(sys.modules.get(PACKAGE), "isend"):
        return
    for blocking, end, post in (
        ("send", "dst", MessageCounter.post_send),
        ("recv", "src", MessageCounter.post_receive),
    ):
        calls = inspect.unwrap(getattr(module, blocking)).__code__.co_names
        names = [f"i{blocking}"] if f"i{blocking}" in calls else [f"i{blocking}", blocking]
        for name in names:
            _count(module, name, end, post)


def _note_group(module: ModuleType, arguments: Mapping[str, Any]) -> None:
    """Note a group whose members are numbered as the job's ranks are."""
    server, job = _server(), current().identity.world_size
    members = arguments.get("global_ranks_in_group") or ()
    size = module.get_world_size() if members else arguments.get("group_size")
    if server is not None and job is not None and size == job:
        note_group(server, str(arguments["group_name"]), members or range(job))


def _count(module: ModuleType, name: str, end: str, post: Post) -> None:
    """Have messages counted; their arguments are found without binding them, which costs 10 us."""
    parameters = list(inspect.signature(getattr(module, name)).parameters)
    places = {one: place for place, one in enumerate(parameters)}

    def argument(call: Call, one: str) -> Any:  # noqa: ANN401 - of any type
        place = places.get(one)  # torch 2.5 has no group_dst
        if place is None or place >= len(call.arguments):
            return call.named.get(one)
        return call.arguments[place]

    def counting(call: Call) -> AbstractContextManager[None]:
        counter = _counter(os.getpid())
        peer = argument(call, end)
        if counter is not None and peer is None:
            peer = _global(module, argument(call, "group"), argument(call, f"group_{end}"))
        if counter is not None and peer is not None and peer >= 0:
            post(counter, peer)
        return nullcontext()

    wrap(module, name, counting)


def _global(module: ModuleType, group: object, number: int | None) -> int | None:
    """Return a group's member by global rank; None where a message may come from any."""
    if group is None or number is None or group is module.group.WORLD:
        return number
    return int(module.get_global_rank(group, number))


def _server() -> Path | None:
    session = current().session
    return None if session is None else session.torch_servers / str(os.getpid())


@lru_cache(maxsize=1)
def _counter(_pid: int) -> MessageCounter | None:
    """Return this process's counter; None without room, or if ranks have not the job's numbers."""
    server, ranks = _server(), sys.modules[PACKAGE].get_world_size()
    if server is None or ranks != current().identity.world_size:
        return None
    try:
        return MessageCounter(server)
    except OSError as error:
        log.once("message-counts", f"messages between ranks are not counted ({error})")
        return None
