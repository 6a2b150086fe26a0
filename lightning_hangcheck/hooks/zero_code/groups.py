"""How processes become ranks, which groups they make, and which collectives they call.

`watch` begins all watching. `init_process_group` and `init_rpc` show which rank a process is. The
rank is taken from the arguments before the call, so that a rank that waits for missing peers is
known, and from torch afterwards. Members of groups, senders and receivers, and callers of
collectives are noted in shared memory: torch's record lacks them, or has them only at too high a
cost.
"""

from __future__ import annotations

import inspect
import os
import sys
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

from lightning_hangcheck import log
from lightning_hangcheck.hooks.being_watched import REHEARSAL, be_watched
from lightning_hangcheck.hooks.state_report import tell_start
from lightning_hangcheck.hooks.zero_code.wrapping import Before, Call, in_section, on_import, wrap
from lightning_hangcheck.identity import Identity, identify
from lightning_hangcheck.recorder.lifecycle import current, process_recorder
from lightning_hangcheck.session.collective_notes import CallNoter, note_group

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path
    from types import FrameType, ModuleType

    Announced = tuple[int | None, int | None, int | None]
    """Rank, world size and the store's port; None where nothing says it."""

PACKAGE = "torch.distributed"
JOINED = "HANGCHECK_JOINED"
"""Set to the process id of a rank that has joined: processes that it starts later are no ranks."""
COLLECTIVES = (
    "all_reduce", "all_reduce_coalesced", "broadcast", "all_gather", "all_gather_into_tensor",
    "all_gather_single", "reduce", "reduce_scatter", "reduce_scatter_tensor",
    "reduce_scatter_single", "all_to_all", "all_to_all_single", "gather", "scatter", "barrier",
)  # fmt: skip
"""Functions that enter one operation themselves; the functions for objects call these."""
TORCHS_TARGET = ("torch.multiprocessing.spawn", "_wrap")
TORCHS_NUMBER = "i"
"""Its second parameter (torch 1.0 to 2.15): the number that the user's function gets, too."""
NUMBERS = ("rank", "global_rank", "local_rank", "process_idx")


def watch(*, is_child: bool) -> None:
    """Watch frameworks; called when the first of them is about to be imported."""
    if REHEARSAL in os.environ:
        from lightning_hangcheck.hooks.rehearsal import begin

        begin()
    # before any code can import a function of torch.distributed by name
    for instrument in (instrument_joining, instrument_groups, instrument_calls):
        on_import(f"{PACKAGE}.distributed_c10d", instrument)
    on_import(f"{PACKAGE}.rpc", instrument_rpc)
    watch_children()
    if not is_child:
        _watch_work()


def _watch_work() -> None:
    """Watch all else that a rank does; a child of multiprocessing does not pay for it."""
    from lightning_hangcheck.hooks.zero_code.loops import watch_ranks

    watch_ranks()


def instrument_joining(module: ModuleType) -> None:
    """Watch torch's ``init_process_group``."""
    section = in_section("init_process_group")

    @contextmanager
    def joining(call: Call) -> Iterator[None]:
        rank, world_size, port = announced(call.given(), os.environ)
        current().meets_ranks = True
        _learn(rank, world_size, port)
        with section(call):
            yield
        _learn(module.get_rank(), module.get_world_size(), port)
        current().page.show(membership="member")
        _begin()

    wrap(module, "init_process_group", joining)


def instrument_rpc(module: ModuleType) -> None:
    """Watch ``init_rpc``: ranks that only call each other have no process group."""
    # A rank number from another source has priority: collectives are known by that number.
    section = in_section("init_rpc", then=lambda _: _begin())

    @contextmanager
    def joining(call: Call) -> Iterator[None]:
        given = call.given()
        if current().identity.rank is None:
            address = getattr(given.get("rpc_backend_options"), "init_method", None)
            _learn(*announced({**given, "init_method": address}, os.environ))
        with section(call):
            yield

    wrap(module, "init_rpc", joining)


def _begin() -> None:
    """The process is now a rank among others: record its work from here on."""
    current().leave_startup()
    tell_start()
    _watch_work()
    os.environ[JOINED] = str(os.getpid())


def announced(arguments: Mapping[str, Any], environment: Mapping[str, str]) -> Announced:
    """Work out rank and world size of a call that joins, as torch does (rendezvous.py)."""
    address, store = urlsplit(str(arguments.get("init_method") or "env://")), arguments.get("store")
    variables, port = dict(parse_qsl(address.query)), getattr(store, "port", address.port)
    if address.scheme == "env" and store is None:
        variables = {
            name: environment.get(name.upper(), "") for name in ("rank", "world_size")
        } | variables
        port = _decimal(environment.get("MASTER_PORT", ""))

    def number(name: str) -> int | None:
        given = arguments.get(name)
        return int(given) if given is not None and given >= 0 else _decimal(variables.get(name, ""))

    return number("rank"), number("world_size"), port


def _decimal(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def _learn(rank: int | None, world_size: int | None, port: int | None) -> None:
    """Be this rank from now on; ignore a group that is only a part of the job."""
    recorder = current()
    if rank is None or world_size is None or world_size < (recorder.identity.world_size or 0):
        return
    local = _decimal(os.environ.get("LOCAL_RANK", ""))
    local = recorder.identity.local_rank if local is None else local
    recorder.learn_identity(rank, world_size, local, port)
    be_watched(recorder)


def instrument_leaving(module: ModuleType) -> None:
    """Watch ``destroy_process_group``: afterwards, started processes may be ranks again."""

    def leave(_: Call) -> None:
        if not module.is_initialized():
            current().page.show(membership="left")
            if os.environ.get(JOINED) == str(os.getpid()):
                del os.environ[JOINED]

    wrap(module, "destroy_process_group", in_section("destroy_process_group", then=leave))


def watch_children() -> None:
    """Have each child of multiprocessing announce itself if it may become a rank."""
    # Whoever starts children numbers them: torch.multiprocessing.spawn and start_processes do, and
    # so Lightning's ``ddp_spawn`` and ``ddp_notebook``. A script that starts its own children
    # mostly gives each its ``rank``. multiprocessing calls ``_bootstrap`` in each child, for any
    # start method (Python 3.8 to 3.15), and then ``run``, once the child knows that it is one.

    def begin(_: FrameType, arguments: tuple[Any, ...], _named: Mapping[str, Any]) -> None:
        """Children of ranks, and numbered ranks of a launcher, announce nothing."""
        child = arguments[0]
        number = number_of(child)
        if number is not None and identify(os.environ).launcher == "none":
            wrap(child, "run", before=lambda *_: current().announce(number))

    def joined(call: Call) -> None:
        """Joining a child reaps it: afterwards nobody else can get the exit code."""
        child, session = call.instance, current().session
        if session is not None and child.exitcode is not None:
            session.note_end(child.pid, child.exitcode)

    wrap(BaseProcess, "_bootstrap", before=begin)
    wrap(BaseProcess, "join", after=joined)


def number_of(process: BaseProcess) -> int | None:
    """Return the number that a process got from its starter; None if it has none."""

    def number(given: object) -> int | None:
        return given if type(given) is int and given >= 0 else None

    target = getattr(process, "_target", None)
    if target is None:
        return number(getattr(process, "rank", None))
    given = (getattr(process, "_args", ()), getattr(process, "_kwargs", {}))
    try:
        named = inspect.signature(target).bind_partial(*given[0], **given[1]).arguments
    except (TypeError, ValueError):  # the arguments do not fit, or it is a C function
        return None
    torchs = (target.__module__, getattr(target, "__name__", "")) == TORCHS_TARGET
    names = (TORCHS_NUMBER,) if torchs else NUMBERS
    return next((number(named[name]) for name in names if name in named), None)


def instrument_calls(module: ModuleType) -> None:
    """Note the caller of each collective before it is entered, with root, reduction and group."""
    # Messages are noted too, with the peer, but only if nobody can hold the unwatched functions
    # yet: torch compares its argument with ``isend`` by identity (batch_isend_irecv). ``send`` and
    # ``recv`` call ``isend`` and ``irecv``, but not in torch 2.5.
    for name in COLLECTIVES:
        if hasattr(module, name):
            wrap(module, name, before=_noting(module, name))
    if hasattr(sys.modules.get(PACKAGE), "isend"):
        return
    for blocking, sign in (("send", 1), ("recv", -1)):
        wrap(module, f"i{blocking}", before=_noting(module, f"i{blocking}", sign))
        if f"i{blocking}" not in inspect.unwrap(getattr(module, blocking)).__code__.co_names:
            wrap(module, blocking, before=_noting(module, blocking, sign))


def _noting(module: ModuleType, function: str, sign: int = 0) -> Before:
    """Make what notes calls of a function; ``sign`` is 1 if it sends a message, -1 if it gets one.

    It finds arguments by their places, as binding them takes 10 us.
    """
    parameters = inspect.signature(getattr(module, function)).parameters
    places = {name: place for place, name in enumerate(parameters)}
    usual = {name: one.default for name, one in parameters.items() if one.default is not one.empty}
    end = next((name for name in ("src", "dst") if name in places), "")
    names = ("group", "op", end, f"group_{end}")
    group_at, op_at, end_at, member_at = (places.get(name, sys.maxsize) for name in names)
    usual_group, usual_op, usual_end, _ = map(usual.get, names)
    # asking torch for a name takes 2 us; its class keeps each op, so no other object has its id
    ops: dict[str, object] = getattr(type(usual_op), "__members__", {})
    reductions = {id(op): name for name, op in ops.items()}
    usual_reduction = getattr(usual_op, "name", "")
    names_of: dict[Any, str] = getattr(module, "_pg_names", {})

    def note(caller: FrameType, given: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        noter = _noters[0] if _noters else _open_notes()
        if noter is None:
            return
        rank, count = None, len(given)
        group = given[group_at] if group_at < count else named.get("group", usual_group)
        if end:
            rank = given[end_at] if end_at < count else named.get(end, usual_end)
            if rank is None:
                # after torch 2.5 callers may give a number in the group instead, as torch does
                member = given[member_at] if member_at < count else named.get(f"group_{end}")
                if member is not None:
                    world = group is None or group is module.group.WORLD
                    rank = int(member if world else module.get_global_rank(group, member))
        if sign:
            me = process_recorder.identity
            in_job = _is_job.get(me)
            if in_job is None:
                in_job = _is_job[me] = module.get_world_size() == me.world_size
            if in_job and rank is not None and rank >= 0:  # otherwise the peer is unknown
                noter.note(None, message=sign * (rank + 1))
            return
        op = given[op_at] if op_at < count else named.get("op", usual_op)
        if op is usual_op:
            reduction = usual_reduction
        else:
            reduction = reductions.get(id(op)) or getattr(op, "name", "")
        name = "" if group is None else names_of.get(group, "") or getattr(group, "group_name", "")
        noter.note(caller, "" if rank is None else f"root {rank}", reduction, name)

    return note


def instrument_groups(module: ModuleType) -> None:
    """Note the members of each group before it is made."""
    maker = "_new_process_group_helper"
    function = getattr(module, maker, None)

    def note(_: FrameType, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        """Note only groups whose members are numbered like the job's ranks."""
        given = Call(None, arguments, named, function).given()
        server, job = _server(), current().identity.world_size
        members = given.get("global_ranks_in_group") or ()
        size = module.get_world_size() if members else given.get("group_size")
        _is_job.clear()
        if server is not None and job is not None and size == job:
            note_group(server, str(given["group_name"]), members or range(job))

    wrap(module, maker, before=note)


def _server() -> Path | None:
    session = current().session
    return None if session is None else session.torch_servers / str(os.getpid())


_is_job: dict[Identity, bool] = {}
"""Whether the default group is the whole job, as a rank knows it; until another group is made."""
_noters: list[CallNoter | None] = []
"""This process's, from its first call on; None if it has no session, or there is no room."""
os.register_at_fork(after_in_child=_noters.clear)


def _open_notes() -> CallNoter | None:
    """Open notes in shared memory; of two threads that do so at once the first decides."""
    server = _server()
    try:
        _noters.append(None if server is None else CallNoter(server))
    except OSError as error:
        lacks = "calls of collectives are not noted"
        log.once(lacks, f"{lacks} ({error})")
        _noters.append(None)
    return _noters[0]
