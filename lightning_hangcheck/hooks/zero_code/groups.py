"""Where a process learns which rank it is: `init_process_group`, `init_rpc`; barriers, the end.

What is announced is told before the call, so that a rank that waits there for peers that never come
is known; what torch itself says is told after it. This is how processes become ranks that no
launcher numbered, as children of ``torch.multiprocessing.spawn``.
"""

from __future__ import annotations

import inspect
import os
import sys
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from lightning_hangcheck import log
from lightning_hangcheck.hooks.being_watched import be_watched
from lightning_hangcheck.hooks.state_report import tell_start
from lightning_hangcheck.hooks.zero_code.imports import watch_ranks
from lightning_hangcheck.hooks.zero_code.sections import in_section
from lightning_hangcheck.hooks.zero_code.wrapping import Call, act_before, by_name, wrap
from lightning_hangcheck.identity import identify
from lightning_hangcheck.recorder.lifecycle import current
from lightning_hangcheck.session.collectives.call_sites import CallNoter
from lightning_hangcheck.session.collectives.collective_notes import MessageCounter, note_group

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path
    from types import FrameType, ModuleType

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


COLLECTIVES = (
    "all_reduce",
    "all_reduce_coalesced",
    "broadcast",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_single",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "reduce_scatter_single",
    "all_to_all",
    "all_to_all_single",
    "gather",
    "scatter",
    "barrier",
)
"""Functions that enter one operation themselves; those for objects call these."""


ROOTS = frozenset({"src", "dst"})
REDUCTIONS = frozenset({"op"})


def instrument_calls(module: ModuleType) -> None:
    """Note the caller of each collective before it is entered, with its root and reduction."""
    for name in COLLECTIVES:
        if hasattr(module, name):
            _watch(module, name)


def _watch(module: ModuleType, name: str) -> None:
    parameters = inspect.signature(getattr(module, name)).parameters
    root, reduction = _finder(parameters, ROOTS), _finder(parameters, REDUCTIONS)

    def note(caller: FrameType, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        noter = _noter(os.getpid())
        if noter is not None:
            number, kind = root(arguments, named), reduction(arguments, named)
            given = "" if number is None else f"root {number}"
            noter.note(caller, given, getattr(kind, "name", ""))

    act_before(module, name, note)


def _finder(
    parameters: Mapping[str, inspect.Parameter], names: frozenset[str]
) -> Callable[[tuple[Any, ...], Mapping[str, Any]], Any]:
    """Return what finds an argument in a call without binding it, which costs 10 us."""
    for place, (name, parameter) in enumerate(parameters.items()):
        if name in names:
            return lambda arguments, named: (
                arguments[place] if place < len(arguments) else named.get(name, parameter.default)
            )
    return lambda _arguments, _named: None


@lru_cache(maxsize=1)
def _noter(_pid: int) -> CallNoter | None:
    """Return this process's noter; None where it has no session, or no room there."""
    session = current().session
    if session is None:
        return None
    try:
        return CallNoter(session.torch_servers / str(os.getpid()))
    except OSError as error:
        log.once("call-notes", f"calls of collectives are not noted ({error})")
        return None


TORCHS_TARGET = ("torch.multiprocessing.spawn", "_wrap")
TORCHS_NUMBER = "i"
"""Its second parameter (torch 1.0 to 2.15): the number that the user's function gets, too."""
NUMBERS = ("rank", "global_rank", "local_rank", "process_idx")


def watch_children() -> None:
    """Have each child of this process announce itself, and this process if it is about to begin.

    multiprocessing calls ``_bootstrap`` in each child, however that was started (Python 3.8 to
    3.15), and from there ``run``, once the child knows itself to be one.
    """
    wrap(BaseProcess, "_bootstrap", _beginning)


@contextmanager
def _beginning(call: Call) -> Iterator[None]:
    """What ranks start, or what a launcher numbered, has nothing to announce."""
    number = number_of(call.instance)
    if number is not None and identify(os.environ).launcher == "none":

        @contextmanager
        def running(_call: Call) -> Iterator[None]:
            current().announce(number)
            yield

        wrap(call.instance, "run", running)
    yield


def number_of(process: BaseProcess) -> int | None:
    """Return the number that a process was given by who started it; None where it has none.

    Args:
        process: As multiprocessing keeps it.
    """
    target = getattr(process, "_target", None)
    if target is None:
        return _number(getattr(process, "rank", None))
    given = (getattr(process, "_args", ()), getattr(process, "_kwargs", {}))
    try:
        named = inspect.signature(target).bind_partial(*given[0], **given[1]).arguments
    except (TypeError, ValueError):  # it cannot be called so, or is of C
        return None
    torchs = (target.__module__, getattr(target, "__name__", "")) == TORCHS_TARGET
    names = (TORCHS_NUMBER,) if torchs else NUMBERS
    return next((_number(named[name]) for name in names if name in named), None)


def _number(given: object) -> int | None:
    return given if type(given) is int and given >= 0 else None


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
        port = _process_groups_number(None, environment.get("MASTER_PORT", ""))
    return Announced(
        _process_groups_number(arguments.get("rank"), told.get("rank", "")),
        _process_groups_number(arguments.get("world_size"), told.get("world_size", "")),
        port,
    )


def _process_groups_number(given: int | None, told: str) -> int | None:
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
