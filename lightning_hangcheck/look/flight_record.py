"""Reads torch's flight record of a rank, from its worker server or from a dump.

Our hooks start that server. Its C++ threads answer even while another thread holds the interpreter
lock. Only the JSON form is requested: the pickled form has call sites, but needs that lock and took
3.4 s for 700 operations (torch 2.13). Torch's dump files have the pickled form.
"""

from __future__ import annotations

import http.client
import re
import socket
import time
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from lightning_hangcheck.look.proc import Looked, Unseen, guarded
from lightning_hangcheck.model.codec import json_decoder
from lightning_hangcheck.model.evidence import Frame
from lightning_hangcheck.model.flight import (
    FLIGHT_RECORD,
    CallSite,
    CollectiveEntry,
    CollectiveRecord,
    FlightRecord,
    Message,
)
from lightning_hangcheck.session.collective_notes import NotedCall, noted
from lightning_hangcheck.session.session import why_withheld

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path


ENTRIES_KEPT = 2_000
"""The newest of all groups together: as many as torch keeps (TORCH_FR_BUFFER_SIZE)."""
LARGEST_ANSWER = 16 * 1024 * 1024
"""Bytes; 2,000 operations (torch's default) take 1 MB, more with many tensors each."""
HANDLERS = ("fr_trace_json", "dump_nccl_trace_json")
"""gloo's recorder, and NCCL's, which writes the same form and the members of each group."""
NCCL2_HANDLER = "fr_trace_json?backend=nccl2"
"""NCCL's recorder from torch 2.15 on; without ``backend`` gloo's answers."""
PIECE, LONGEST_TOLD = 1 << 16, 80
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
NCCLS_BARRIER = "all_reduce_barrier", "barrier"
NCCL2_THREADS = "pt_nccl2"
ON_CPU = ("gloo:", "mpi:")
COUNTER_PREFIX = "pytorch.wait_counter."
MESSAGE = re.compile(r"(send|recv) (\d+)(?:->|<-)(\d+)$")
"""A message's name in NCCL's record: ``nccl:send 0->3``, by ranks of the group."""


class _CalledFrom(msgspec.Struct, frozen=True):
    """A Python call that led to an operation; only dumps have them, innermost first."""

    name: str
    filename: str
    line: int


class _Operation(msgspec.Struct):
    """An entry as torch writes it (version 2.10 of its format)."""

    process_group: tuple[str, str]
    collective_seq_id: int
    profiling_name: str
    is_p2p: bool
    retired: bool
    time_created_ns: int
    record_id: int = 0
    state: str = ""
    pg_id: int = -1
    p2p_seq_id: int = 0
    thread_id: str = ""
    input_sizes: tuple[tuple[int, ...], ...] = ()
    input_dtypes: tuple[str, ...] = ()
    frames: tuple[_CalledFrom, ...] = ()
    timeout_ms: int = 0

    @property
    def ended(self) -> bool:
        """Whether it ended; torch may show this before it retires the entry."""
        return self.retired or self.state == "completed"


class _Group(msgspec.Struct):
    """A group as recorded; NCCL names its members, as ``"[0, 1]"``, gloo does not."""

    desc: str = ""
    ranks: str = ""


class _Status(msgspec.Struct):
    """Numbers of a group; in JSON torch writes them as text."""

    last_enqueued_collective: int = -1
    last_completed_collective: int = -1


class _Trace(msgspec.Struct):
    """What one recorder holds: gloo's groups or NCCL's."""

    entries: tuple[_Operation, ...] = ()
    pg_config: dict[str, _Group] = {}
    pg_status: dict[str, _Status] = {}

    def members(self, group: str) -> tuple[int, ...]:
        """Return a group's ranks; empty if the record does not name them."""
        ranks = self.pg_config[group].ranks if group in self.pg_config else ""
        return json_decoder(tuple[int, ...]).decode(ranks) if ranks else ()


class _Counter(msgspec.Struct):
    active_count: int


class _NoSuchHandler(http.client.HTTPException):
    """The server has no handler of that name."""


def flight_record(
    path: Path, rank: int | None, time_limit_s: float, *, nccl2: bool = False
) -> Looked[FlightRecord]:
    """Ask a rank's worker server for its flight record; 10 ms for 700 operations.

    The time limit covers all requests. ``nccl2``: ask torch's newer NCCL backend, too.
    """
    deadline = time.monotonic() + time_limit_s

    def trace(handler: str) -> _Trace:
        """Ask one of torch's recorders; torch without CUDA has only the first."""
        try:
            return json_decoder(_Trace, strict=False).decode(ask_server(path, handler, deadline))
        except _NoSuchHandler:
            if handler == HANDLERS[0]:
                raise
            return _Trace()

    def look() -> FlightRecord:
        if not path.exists():
            raise Unseen(
                why_withheld(path)
                or "this rank has no worker server: torch is not imported yet or too old (2.5 or "
                "later has it), or the job was not started by hangcheck run or with the HangCheck "
                "callback"
            )
        taken_ns = time.monotonic_ns()
        try:
            traces = [
                trace(handler) for handler in (*HANDLERS, *((NCCL2_HANDLER,) if nccl2 else ()))
            ]
            counted = ask_server(path, "wait_counter_values", deadline)
            counters = json_decoder(dict[str, _Counter]).decode(counted)
        except _NoSuchHandler as error:
            why = f"this torch is too old: its worker server has no {error}, which torch 2.13 has"
            raise Unseen(why, "upgrade torch") from error
        except (OSError, http.client.HTTPException) as error:
            raise Unseen(f"torch's worker server gave no answer ({error!r})") from error
        except msgspec.MsgspecError as error:
            raise Unseen(
                f"this torch writes its flight record in another form ({error})"
            ) from error
        waits = {
            name.removeprefix(COUNTER_PREFIX): counter.active_count
            for name, counter in counters.items()
            if counter.active_count > 0
        }
        notes = noted(path)
        groups = _groups(traces, notes.groups)
        record = FlightRecord(
            taken_ns=taken_ns, groups=groups, waits=waits, messages=notes.messages
        )
        sites = {number: site.called for number, site in notes.sites.items()}
        return with_sites(record, notes.calls, sites)

    return guarded("flight_record", FLIGHT_RECORD, rank, look)


def ask_server(path: Path, handler: str, deadline: float) -> bytes:
    """Call a handler of a rank's worker server, named with its options.

    The whole answer must arrive by the deadline, in monotonic seconds. Raises OSError if it does
    not, HTTPException if the answer is not the handler's.
    """
    # without "close" a thread of the rank would wait for a second request
    request = f"POST /handler/{handler} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:

        def bounded() -> socket.socket:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError("no whole answer in time")
            server.settimeout(left_s)
            return server

        bounded().connect(str(path))
        bounded().sendall(f"{request}Content-Length: 0\r\n\r\n".encode())
        answer = bytearray()
        while len(answer) < LARGEST_ANSWER and (piece := bounded().recv(PIECE)):
            answer += piece
    head, _, body = bytes(answer).partition(b"\r\n\r\n")
    status = head.split(maxsplit=2)[1:2]
    if status == [b"404"]:
        raise _NoSuchHandler(handler)
    if status != [b"200"]:
        raise http.client.HTTPException(f"{handler}: {head[:LONGEST_TOLD]!r}")
    length = LENGTH.search(head)
    if length is not None and len(body) < int(length[1]):
        raise http.client.IncompleteRead(body, int(length[1]) - len(body))
    return body


COUNTS_ONLY = "includecollectives=false&includestacktraces=false"
"""NCCL's recorder obeys these options; gloo's (torch 2.13) sends its whole record anyway."""
Numbers = dict[str, tuple[int, int]]
"""By group: the number of the operation entered last, and of the one that ended last. Key
``messages``: messages posted to send and to receive; gloo's record lacks those that block."""


class _Counts(msgspec.Struct):
    pg_status: dict[str, _Status] = {}


def collective_numbers(path: Path, time_limit_s: float) -> Numbers:
    """Return how far a rank's collectives have come, by its worker server and its own notes.

    torch still counts operations that its record has dropped. A source without counts is left out.
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
    posted = noted(path).messages
    if posted is not None:
        found["messages"] = (sum(posted.sent.values()), sum(posted.received.values()))
    return found


# Reading a record, from whichever source. Pure


def record_of_dump(dump: object, taken_ns: int) -> FlightRecord:
    """Read a dump that torch wrote at that time; msgspec.ValidationError if it is none."""
    trace = msgspec.convert(dump, _Trace, strict=False)
    sites: dict[tuple[_CalledFrom, ...], int] = {}
    groups = _groups([trace], {}, sites)
    called = {
        number: CallSite(tuple(Frame(place.name, place.filename, place.line) for place in way))
        for way, number in sites.items()
    }
    return FlightRecord(taken_ns=taken_ns, groups=groups, sites=called)


def _groups(
    traces: list[_Trace],
    noted: dict[str, tuple[int, ...]],
    sites: dict[tuple[_CalledFrom, ...], int] | None = None,
) -> tuple[CollectiveRecord, ...]:
    """Sort operations by group. In a dump no clock counts, and call sites are added to ``sites``.

    A group that the rank noted but has not used is included, if gloo's record reaches back to its
    beginning. A group in NCCL's record may have been used: that record drops ended operations.
    """
    of_dump = sites is not None
    members_of = {name: trace.members(name) for trace in traces for name in trace.pg_config}
    members = noted | {name: ranks for name, ranks in members_of.items() if ranks}
    entries = [entry for trace in traces for entry in trace.entries]
    entries.sort(key=lambda entry: entry.record_id if of_dump else entry.time_created_ns)
    older = entries[:-ENTRIES_KEPT] if of_dump else []
    together: dict[tuple[str, str], list[_Operation]] = {}
    for operation in (
        *(operation for operation in older if not operation.ended),
        *entries[-ENTRIES_KEPT:],
    ):
        together.setdefault(operation.process_group, []).append(operation)
    found = [
        _record(group, operations, members.get(group[0], ()), sites)
        for group, operations in together.items()
    ]
    busy = {name for name, _ in together}
    for trace in traces:  # on GPUs the record keeps the numbers when nothing is open
        for name, status in _statuses(trace).items():
            enqueued = max(0, status.last_enqueued_collective)
            if name in busy or not trace.members(name) or not (of_dump or enqueued):
                continue
            found.append(
                CollectiveRecord(
                    group=name,
                    description=trace.pg_config[name].desc,
                    ranks=trace.members(name),
                    on_device=True,
                    last_enqueued=enqueued,
                    last_completed=max(0, status.last_completed_collective),
                )
            )
    if len(entries) <= ENTRIES_KEPT and all(entry.record_id < len(entries) for entry in entries):
        unused = [name for name in noted if name not in members_of and name not in busy]
        found += [CollectiveRecord(group=name, ranks=noted[name]) for name in unused]
    return tuple(found)


def _statuses(trace: _Trace) -> dict[str, _Status]:
    """Return the numbers of groups by name; torch keys them by a number of its own.

    torch's number counts the groups of the process, a name all groups of the job; an entry has
    both. Both grow as groups are made. So if all used groups have numeric names, the two lists
    match in order. (torch 2.13, ``FlightRecorderDetail.hpp``, ``getPgStatus``)
    """
    names = {str(operation.pg_id): operation.process_group[0] for operation in trace.entries}
    numbered = [*trace.pg_config, *trace.pg_status]
    if len(trace.pg_config) == len(trace.pg_status) and all(map(str.isdecimal, numbered)):
        pairs = zip(sorted(trace.pg_status, key=int), sorted(trace.pg_config, key=int), strict=True)
        in_order = dict(pairs)
        names = in_order if names.items() <= in_order.items() else names
    return {name: trace.pg_status[key] for key, name in names.items() if key in trace.pg_status}


def _record(
    group: tuple[str, str],
    operations: list[_Operation],
    members: tuple[int, ...],
    sites: dict[tuple[_CalledFrom, ...], int] | None,
) -> CollectiveRecord:
    """Read one group, given its name and description.

    A message has the number of the collective that its rank entered before. Operations of a
    coalesced block share a number: torch never marks them as ended, but adds an entry for the block
    when it closes. If that is not kept, the end of a later operation implies it. A group that was
    destroyed and made again reuses its name and counts from 1: its earlier operations are left out.
    """
    numbers = [operation.collective_seq_id for operation in operations]
    begun = (at for at, (old, new) in enumerate(pairwise(numbers), 1) if new <= 1 and new < old)
    operations = operations[max(begun, default=0) :]
    newest = max(operation.collective_seq_id for operation in operations)
    blocks: dict[int, list[_Operation]] = {}
    for operation in operations:
        if not operation.is_p2p:
            blocks.setdefault(operation.collective_seq_id, []).append(operation)
    last_ended = max((seq for seq, ones in blocks.items() if ones[-1].ended), default=0)
    entries = []
    for seq, ones in sorted(blocks.items()):
        whole, alone = ones[-1], len(ones) == 1
        name = whole.profiling_name if alone else "nccl:coalesced"
        way, site = tuple(reversed(whole.frames)), 0
        if way and sites is not None:
            site = sites.setdefault(way, len(sites) + 1)
        entries.append(
            CollectiveEntry(
                seq=seq,
                op=(name.partition(":")[2] or name).replace(*NCCLS_BARRIER),
                sizes=whole.input_sizes if alone else (),
                dtypes=whole.input_dtypes if alone else (),
                retired=any(operation.ended for operation in ones)
                or (not alone and seq < last_ended),
                created_ns=whole.time_created_ns,
                thread=int(whole.thread_id) if whole.thread_id.isdecimal() else 0,
                site=site,
                recorded=whole.record_id if sites is not None else 0,
            )
        )
    unended = (entry.seq for entry in entries if not entry.retired)
    messages = _messages(
        [operation for operation in operations if operation.is_p2p], members, sites is not None
    )
    return CollectiveRecord(
        group=group[0],
        description=group[1],
        ranks=members,
        on_device=not operations[-1].profiling_name.startswith(ON_CPU),
        last_enqueued=newest,
        last_completed=next(unended, newest + 1) - 1,
        limit_s=max(0, operations[-1].timeout_ms) / 1000,
        entries=tuple(entries),
        messages=tuple(messages),
    )


def _messages(
    posted: Sequence[_Operation], members: Sequence[int], of_dump: bool
) -> Iterator[Message]:
    """Read sends and receives with a known other end; torch marks only whole batches as ended."""
    often = Counter(operation.p2p_seq_id for operation in posted)
    named = [(operation, MESSAGE.search(operation.profiling_name)) for operation in posted]
    batches = {operation.p2p_seq_id: operation for operation, name in named if name is None}
    for operation, name in named:
        if name is None or max(int(name[2]), int(name[3])) >= len(members):
            continue
        batch = batches.get(operation.p2p_seq_id)
        ended = (
            batch.ended if batch is not None else operation.ended or often[operation.p2p_seq_id] > 1
        )
        yield Message(
            seq=operation.p2p_seq_id,
            away=members[int(name[3])] - members[int(name[2])],
            sends=name[1] == "send",
            retired=ended,
            created_ns=operation.time_created_ns,
            recorded=operation.record_id if of_dump else 0,
        )


def with_sites(
    flight: FlightRecord, calls: Sequence[NotedCall], sites: Mapping[int, CallSite]
) -> FlightRecord:
    """Add to each operation of a rank the number of its call site.

    A call is noted just before its operation starts, in the same thread, so the next operation of
    that thread belongs to it. Operations that C++ starts (DDP's reducer) have no call.
    """
    entered = sorted(
        (entry.created_ns, entry.thread, group.group, entry.seq)
        for group in flight.groups
        for entry in group.entries
    )
    waiting: dict[int, NotedCall] = {}
    found: dict[tuple[str, int], int] = {}
    left = list(reversed(calls))
    for created_ns, thread, name, seq in entered:
        while left and left[-1].at_ns <= created_ns:
            call = left.pop()
            waiting[call.thread] = call
        own = thread or max(waiting, key=lambda number: waiting[number].at_ns, default=0)
        if own in waiting:
            found[name, seq] = waiting.pop(own).site

    def completed(group: CollectiveRecord) -> CollectiveRecord:
        own = (
            replace(entry, site=found.get((group.group, entry.seq), 0)) for entry in group.entries
        )
        return replace(group, entries=tuple(own))

    often = Counter(call.site for call in calls if call.site in sites)
    used = set(found.values())
    return replace(
        flight,
        groups=tuple(map(completed, flight.groups)),
        sites={site: called for site, called in sites.items() if site in used},
        reduced=max((often[site] for site in often if sites[site].reduction), default=0),
        repeated=max((often[site] for site in often if not sites[site].root), default=0),
    )
