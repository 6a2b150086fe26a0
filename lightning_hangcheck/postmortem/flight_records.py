"""Reads flight-record dumps, whatever their file names, and keeps those of one incident.

A dump does not name its rank. The rank is a member of all its groups, and its messages show which
member. If several ranks fit, the file's name decides. One folder may hold several jobs, and several
incidents of one job. They are separated by default group, time and operation numbers.
"""

from __future__ import annotations

import io
import pickle
import re
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec
from msgspec import Struct

from lightning_hangcheck.judge.postmortem_records import NEAR
from lightning_hangcheck.look.flight_record import MESSAGE, record_of_dump
from lightning_hangcheck.model.flight import FlightRecord
from lightning_hangcheck.model.left_behind import LeftOut
from lightning_hangcheck.postmortem.files import NotRead, bounded_memory
from lightning_hangcheck.text.moments import moment_of, utc
from lightning_hangcheck.text.shown import NANOSECONDS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from pathlib import Path

KEYS = (b"pg_config", b"record_id", b"profiling_name", b"collective_seq_id")
LARGEST_RECORD = 256 * 1024 * 1024
MOST_ENTRIES = 100_000
MOST_OPEN, MOST_ENDED = 2_000, 64
"""Limits on entries that are kept: open ones, and ended ones (also the newest of each group)."""
MOST_TENSORS, MOST_DIMENSIONS, MOST_CALLS = 64, 16, 64
SHORT_NS = 20 * 60 * NANOSECONDS
"""In one incident ranks end their work within this time, or twice the job's own time limit."""
LATEST_NS = 4 * 10**18
LONG_NS = 24 * 3600 * NANOSECONDS
"""The same if the operation numbers agree: then a clock is wrong."""
RANK_IN_NAME = re.compile(r"rank[_-]?(\d{1,6})(?!\d)")
NUMBER_IN_NAME = re.compile(r"(?<!\d)\d{1,6}(?!\d)")
"""At most 6 digits: a date is not a rank."""


class Dump(Struct, frozen=True, kw_only=True):
    """A flight record, read from a file.

    Attributes:
        rank: The rank that wrote it; None if unknown.
        fits: Number of ranks that are in all its groups; 0 if it names no members.
        world: Members of the job's default group; empty if it is not named.
        numbers: Number of the newest operation in each group.
        first_ns: When the oldest listed operation was entered; 0 if none is listed.
        last_ns: When the newest listed operation was entered; likewise.
        timeout_ns: The job's own time limit for an operation.
    """

    path: str
    flight: FlightRecord
    rank: int | None
    fits: int
    world: tuple[int, ...]
    numbers: dict[str, int]
    first_ns: int
    last_ns: int
    timeout_ns: int


# Reading a dump.


class _PlainData(pickle.Unpickler):
    """Builds numbers, texts, lists and dictionaries; anything else would run code."""

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401 - as pickle has it
        raise NotRead(f"it is a pickle that would load {module}.{name}: only plain data is read")


def is_record(head: bytes) -> bool:
    """Whether a file begins like a flight record, pickled or in JSON."""
    if head[:1] == b"\x80":
        return any(key in head for key in KEYS)
    return head.lstrip()[:1] == b"{" and any(b'"%s"' % key in head for key in KEYS)


def read_record(path: Path, file: BinaryIO) -> Dump:
    """Read what torch dumps after a time-out, or what its worker server writes as JSON.

    Raises:
        NotRead: The file is broken, is no flight record, or would run code.
    """
    parts: list[bytes] = []
    left = LARGEST_RECORD
    while data := file.read(min(left + 1, 1024 * 1024)):
        parts.append(data)
        left -= len(data)
        if left < 0:
            raise NotRead(f"it is larger than {LARGEST_RECORD:,} bytes")
    whole = b"".join(parts)
    form = "pickle" if whole[:1] == b"\x80" else "JSON"
    try:
        with bounded_memory():
            if form == "JSON":
                return _dump_of(path, msgspec.json.decode(whole))
            return _dump_of(path, _PlainData(io.BytesIO(whole)).load())
    except (NotRead, MemoryError):
        raise
    except Exception as error:
        # a broken or hostile file may raise anything
        raise NotRead(f"its {form} is torn ({type(error).__name__}: {error})"[:300]) from error


def _dump_of(path: Path, data: object) -> Dump:
    if not isinstance(data, dict) or not isinstance(data.get("entries", []), (list, tuple)):
        raise NotRead("it is not a flight record")
    entries = _telling([entry for entry in data.get("entries", ()) if isinstance(entry, dict)])
    config = data.get("pg_config")
    config = config if isinstance(config, dict) else {}
    groups = {str(key): group for key, group in config.items() if isinstance(group, dict)}
    if not entries and not groups:
        raise NotRead("it is a flight record without entries and groups")
    members: dict[str, tuple[int, ...]] = {}
    for name, facts in groups.items():
        ranks = facts.get("ranks")  # ``"[0, 1]"``, or a list
        ranks = re.findall(r"\d{1,8}", ranks) if isinstance(ranks, str) else _first(ranks, 2**24)
        members[name] = tuple(int(rank) for rank in ranks if isinstance(rank, (int, str)))
    operations = [_entry(entry) for entry in entries]
    plain = {
        "entries": operations,
        "pg_config": {
            name: {"desc": str(group.get("desc", "")), "ranks": str(list(members[name]) or "")}
            for name, group in groups.items()
        },
        "pg_status": data.get("pg_status", {}),
    }
    try:
        flight = record_of_dump(plain, 0)
    except msgspec.MsgspecError as error:
        raise NotRead(f"it is a flight record of another form ({error})") from error
    times = [facts for entry in operations if 0 < (facts := entry["time_created_ns"]) < LATEST_NS]
    limit = entries[-1].get("timeout_ms") if entries else 0
    whole = (name for name, group in groups.items() if group.get("desc") == "default_pg")
    fits = _whose(members, operations, data.get("rank"))
    found = RANK_IN_NAME.findall(path.name) or NUMBER_IN_NAME.findall(path.name)
    named = int(found[-1]) if found else None
    rank = named if not fits or named in fits else None
    return Dump(
        path=str(path),
        flight=flight,
        rank=next(iter(fits)) if len(fits) == 1 else rank,
        fits=len(fits),
        world=members.get(next(whole, "0"), ()),
        numbers={
            group.group: max([group.last_enqueued, *(message.seq for message in group.messages)])
            for group in flight.groups
        },
        first_ns=min(times, default=0),
        last_ns=max(times, default=0),
        timeout_ns=limit * 1_000_000 if isinstance(limit, int) else 0,
    )


def _telling(entries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the open entries and the newest ended ones, in order.

    The parts of a block share the number of the block and end with it.
    """
    entries = entries[-MOST_ENTRIES:]
    keys = [
        (
            entry.get("pg_id"),
            entry.get("collective_seq_id", entry.get("seq_id")),
            entry.get("p2p_seq_id"),
        )
        for entry in entries
    ]
    pairs = list(zip(keys, entries, strict=True))
    over = {
        key for key, entry in pairs if entry.get("retired") or entry.get("state") == "completed"
    }
    kept: list[dict[str, Any]] = []
    groups: set[object] = set()
    still = 0
    for key, kept_entry in reversed(pairs):
        still += key not in over
        if key not in over or len(kept) - still < MOST_ENDED or key[0] not in groups:
            kept.append(kept_entry)
            groups.add(key[0])
    kept.reverse()
    return kept if len(kept) <= 2 * MOST_OPEN else [*kept[:MOST_OPEN], *kept[-MOST_OPEN:]]


def _entry(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Take the needed fields of an entry, in the newest form, with each list cut to its limit."""
    entry = {
        "collective_seq_id": raw.get("seq_id", 0),  # before torch 2.4
        "process_group": (str(raw.get("pg_id", 0)), ""),
        "is_p2p": False,
        "retired": False,
        "time_created_ns": 0,
        **{name: value for name, value in raw.items() if value is not None},
    }
    sizes = _first(raw.get("input_sizes"), MOST_TENSORS)
    calls = _first(raw.get("frames"), MOST_CALLS)
    return {
        **entry,
        "process_group": tuple(map(str, _first(entry["process_group"], 2))),
        "input_sizes": [_first(size, MOST_DIMENSIONS) for size in sizes],
        "input_dtypes": _first(raw.get("input_dtypes"), MOST_TENSORS),
        "frames": [call for call in calls if isinstance(call, dict) and "filename" in call],
    }


def _first(values: object, most: int) -> Sequence[Any]:
    """Return the first values of a list; a pickle may name one list a million times."""
    return values[:most] if isinstance(values, (list, tuple)) else ()


def _whose(
    members: Mapping[str, Sequence[int]], entries: Iterable[Mapping[str, Any]], said: object
) -> Collection[int]:
    """Return the ranks that are in all groups, and at the position that a message names."""
    if isinstance(said, int):
        return (said,)
    groups = [set(ranks) for ranks in members.values() if ranks]
    found = set.intersection(*groups) if groups else set()
    for entry in entries:
        named = MESSAGE.search(entry["profiling_name"]) if entry["is_p2p"] else None
        ranks = members.get(entry["process_group"][0], ())
        if named is not None and int(named[2]) < len(ranks):
            return {ranks[int(named[2])]} & found
    return found


# Which dumps belong together.


def of_one_incident(dumps: Iterable[Dump]) -> tuple[dict[int, Dump], list[LeftOut]]:
    """Return the dumps, by rank, of the incident with the most ranks; and the dumps left out."""
    incidents: list[dict[int, Dump]] = []
    left_out: list[LeftOut] = []
    for dump in sorted(dumps, key=lambda dump: (not dump.last_ns, dump.last_ns, dump.path)):
        if dump.rank is None:
            fits = f"its groups fit {dump.fits} ranks" if dump.fits else "it names no group"
            why = f"nothing says whose flight record it is: {fits}, and its name has no such number"
            left_out.append(LeftOut(dump.path, why))
            continue
        for incident in reversed(incidents):
            if dump.rank not in incident and _is_of(dump, list(incident.values())):
                incident[dump.rank] = dump
                break
        else:
            incidents.append({dump.rank: dump})

    def last_ns(incident: dict[int, Dump]) -> int:
        return max(dump.last_ns for dump in incident.values())

    newest = max(incidents, key=lambda incident: (len(incident), last_ns(incident)), default={})
    for other in incidents:
        if other is not newest:
            at = last_ns(other)
            when = utc(moment_of(at), "seconds") if at else "an unknown time"
            why = f"it is of another incident or job, of {when}: read that by itself"
            left_out += [LeftOut(dump.path, why) for dump in other.values()]
    return newest, left_out


def _is_of(dump: Dump, others: Sequence[Dump]) -> bool:
    """Whether a dump is of the same job and incident as others."""
    worlds = {other.world for other in others if other.world}
    if worlds and dump.world and dump.world not in worlds:
        return False
    near = [
        abs(number - other.numbers[group]) <= NEAR
        for other in others
        for group, number in dump.numbers.items()
        if other.numbers.get(group, 0) > 0 and number > 0
    ]
    times = [abs(other.last_ns - dump.last_ns) for other in others if other.last_ns]
    if near and not any(near):
        return False
    limit = max(SHORT_NS, 2 * max(other.timeout_ns for other in others))
    return not times or not dump.last_ns or min(times) <= (LONG_NS if near else limit)
