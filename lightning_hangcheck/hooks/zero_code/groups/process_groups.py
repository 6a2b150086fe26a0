"""Where a process learns which rank it is: `init_process_group`, `init_rpc`; barriers, the end.

What is announced is told before the call, so that a rank that waits there for peers that never come
is known; what torch itself says is told after it. This is how processes become ranks that no
launcher numbered, as children of ``torch.multiprocessing.spawn``.
"""

from __future__ import annotations

import inspect
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from lightning_hangcheck.hooks.being_watched import be_watched
from lightning_hangcheck.hooks.state_report import tell_start
from lightning_hangcheck.hooks.zero_code.imports import watch_ranks
from lightning_hangcheck.hooks.zero_code.sections import in_section
from lightning_hangcheck.hooks.zero_code.wrapping import Call, by_name, wrap
from lightning_hangcheck.recorder.lifecycle import current

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import ModuleType


JOINED = "HANGCHECK_JOINED"
"""Set to the process id of a rank that has joined: whatever it starts from then on is no rank."""


class Announced(NamedTuple):
    """Who a rank is going to be, and where it will meet the others; None where nothing says it."""

    rank: int | None
    world_size: int | None
    store_port: int | None


def instrument_joining(module: ModuleType) -> None:
    """Watch torch's ``init_process_group``."""
    signature = inspect.signature(module.init_process_group)
    section = in_section("init_process_group")

    @contextmanager
    def joining(call: Call) -> Iterator[None]:
        told = announced(by_name(call, signature), os.environ)
        current().meets_ranks = True
        _learn(told)
        with section(call):
            yield
        _learn(Announced(module.get_rank(), module.get_world_size(), told.store_port))
        current().show_membership("member")
        _begin()

    wrap(module, "init_process_group", joining)


def instrument_rpc(module: ModuleType) -> None:
    """Watch ``init_rpc``: ranks that only call each other have no process group.

    A number that somebody else gave counts more: collectives are told by that one.
    """
    signature = inspect.signature(module.init_rpc)
    section = in_section("init_rpc")

    @contextmanager
    def joining(call: Call) -> Iterator[None]:
        arguments = by_name(call, signature)
        if current().identity.rank is None:
            address = getattr(arguments.get("rpc_backend_options"), "init_method", None)
            _learn(announced({**arguments, "init_method": address}, os.environ))
        with section(call):
            yield
        _begin()

    wrap(module, "init_rpc", joining)


def _begin() -> None:
    """It is a rank now, with the others: what it does from here on is its work."""
    current().leave_startup()
    tell_start()
    watch_ranks()
    os.environ[JOINED] = str(os.getpid())


def announced(arguments: Mapping[str, Any], environment: Mapping[str, str]) -> Announced:
    """Work out which rank of how many a call is going to be, as torch does (rendezvous.py).

    Args:
        arguments: Of the call, by name.
        environment: Of this process: its RANK, WORLD_SIZE and MASTER_PORT count where the call
            leaves them open.
    """
    address, store = urlsplit(str(arguments.get("init_method") or "env://")), arguments.get("store")
    told, port = dict(parse_qsl(address.query)), getattr(store, "port", address.port)
    if address.scheme == "env" and store is None:
        told = {name: environment.get(name.upper(), "") for name in ("rank", "world_size")} | told
        port = _number(None, environment.get("MASTER_PORT", ""))
    return Announced(
        _number(arguments.get("rank"), told.get("rank", "")),
        _number(arguments.get("world_size"), told.get("world_size", "")),
        port,
    )


def _number(given: int | None, told: str) -> int | None:
    if given is not None and given >= 0:
        return int(given)
    return int(told) if told.isdecimal() else None


def _learn(told: Announced) -> None:
    """Be this rank from now on; a group that is smaller than the job is only a part of it."""
    recorder, (rank, world_size, port) = current(), told
    if rank is None or world_size is None or world_size < (recorder.identity.world_size or 0):
        return
    local_rank = os.environ.get("LOCAL_RANK", "")
    known = recorder.identity.local_rank
    local = int(local_rank) if local_rank.isdecimal() else known
    recorder.learn_identity(rank, world_size, local, port)
    be_watched(recorder)


def instrument_groups(module: ModuleType) -> None:
    """Watch ``barrier``, ``monitored_barrier`` and ``destroy_process_group``."""
    for name in ("barrier", "monitored_barrier"):
        wrap(module, name, in_section("dist.barrier"))
    left = in_section("destroy_process_group", then=lambda _: _leave(module))
    wrap(module, "destroy_process_group", left)


def _leave(module: ModuleType) -> None:
    """Once no group is left: what this process starts from now on may be ranks again."""
    if module.is_initialized():
        return
    current().show_membership("left")
    if os.environ.get(JOINED) == str(os.getpid()):
        del os.environ[JOINED]
