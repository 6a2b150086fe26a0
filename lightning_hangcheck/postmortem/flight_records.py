"""Reads flight-record dumps, whatever they are called, and keeps those of one incident.

A dump names no rank. Its groups do: a rank is in all of them, and its messages tell which member it
is. Where they leave a choice, the file's name decides. Several jobs, and several incidents of one
job, may lie in one folder: they are told apart by their default group, the time, and the numbers of
their operations.
"""

from __future__ import annotations

import io
import pickle
import re
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec
from msgspec import Struct

from lightning_hangcheck.look.flight_record import MESSAGE, record_of_dump
from lightning_hangcheck.model.flight import FlightRecord
from lightning_hangcheck.model.left_behind import LeftOut
from lightning_hangcheck.postmortem.files import NotRead, bounded_memory
from lightning_hangcheck.text.shown import NANOSECONDS, moment_of, utc

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

KIND = "flight record"
KEYS = (b"pg_config", b"record_id", b"profiling_name", b"collective_seq_id")
LARGEST_RECORD = 256 * 1024 * 1024
MOST_ENTRIES = 100_000
MOST_OPEN, MOST_ENDED = 2_000, 64
"""Entries that are kept: of those that have ended, the newest and one of each group say enough."""
MOST_TENSORS, MOST_DIMENSIONS, MOST_CALLS = 64, 16, 64
NEAR = 1_000
"""Numbers of one group are no further apart than this in one incident."""
SHORT_NS = 20 * 60 * NANOSECONDS
"""Ranks of one incident do their last within this time, or two of the job's own time limits."""
LATEST_NS = 4 * 10**18
LONG_NS = 24 * 3600 * NANOSECONDS
"""The same where their numbers agree: then a clock is wrong."""
RANK_IN_NAME = re.compile(r"rank[_-]?(\d{1,6})(?!\d)")
NUMBER_IN_NAME = re.compile(r"(?<!\d)\d{1,6}(?!\d)")
"""A date is no rank."""
FIELDS = (
    "process_group",
    "pg_id",
    "collective_seq_id",
    "p2p_seq_id",
    "record_id",
    "profiling_name",
    "is_p2p",
    "retired",
    "state",
    "time_created_ns",
    "thread_id",
    "input_dtypes",
)


class Dump(Struct, frozen=True, kw_only=True):
    """A flight record as it lies in a file.

    Attributes:
        ranks: Whose it may be, by its groups; none where it names no members.
        named: Number in the file's name; None where there is none.
        world: Members of the job's default group; none where it is not named.
        numbers: Of the newest operation in each group.
        first_ns: When the oldest operation that is listed was entered; 0 where none is.
        last_ns: The same of the newest.
        timeout_ns: The job's own limit for an operation.
    """

    path: str
    flight: FlightRecord
    ranks: tuple[int, ...]
    named: int | None
    world: tuple[int, ...]
    numbers: dict[str, int]
    first_ns: int
    last_ns: int
    timeout_ns: int

    @property
    def rank(self) -> int | None:
        """Whose it is; None where nothing tells."""
        if len(self.ranks) == 1:
            return self.ranks[0]
        return self.named if not self.ranks or self.named in self.ranks else None


# Reading one.


class _PlainData(pickle.Unpickler):
    """Builds numbers, texts, lists and dictionaries; anything else would be a program."""

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401 - as pickle has it
        raise NotRead(f"it is a pickle that would load {module}.{name}: only plain data is read")


def is_pickle(head: bytes) -> bool:
    """Whether a file begins as a pickled flight record does."""
    return head[:1] == b"\x80" and any(key in head for key in KEYS)


def is_json(head: bytes) -> bool:
    """Whether a file begins as a flight record in JSON does."""
    return head.lstrip()[:1] == b"{" and any(b'"%s"' % key in head for key in KEYS)


def read_pickle(path: Path, file: BinaryIO) -> Dump:
    """Read what torch dumps when an operation times out.

    Raises:
        NotRead: It is torn, or no flight record, or would do more than hold data.
    """
    data = _whole(file)
    try:
        with bounded_memory():
            return _dump_of(path, _PlainData(io.BytesIO(data)).load())
    except (NotRead, MemoryError):
        raise
    except Exception as error:
        # whatever a torn or hostile pickle makes of the unpickler
        raise NotRead(f"its pickle is torn ({type(error).__name__}: {error})"[:300]) from error


def read_json(path: Path, file: BinaryIO) -> Dump:
    """Read the same in JSON, as torch's worker server writes it.

    Raises:
        NotRead: It is torn, or no flight record.
    """
    try:
        with bounded_memory():
            return _dump_of(path, msgspec.json.decode(_whole(file)))
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise NotRead(f"its JSON is torn ({error})"[:300]) from error


def _whole(file: BinaryIO) -> bytes:
    parts: list[bytes] = []
    left = LARGEST_RECORD
    while data := file.read(min(left + 1, 1024 * 1024)):
        parts.append(data)
        left -= len(data)
        if left < 0:
            raise NotRead(f"it is larger than {LARGEST_RECORD:,} bytes")
    return b"".join(parts)


def _dump_of(path: Path, data: object) -> Dump:
    if not isinstance(data, dict) or not isinstance(data.get("entries", []), (list, tuple)):
        raise NotRead("it is not a flight record")
    entries = _telling([one for one in data.get("entries", ()) if isinstance(one, dict)])
    config = data.get("pg_config")
    config = config if isinstance(config, dict) else {}
    groups = {str(key): one for key, one in config.items() if isinstance(one, dict)}
    if not entries and not groups:
        raise NotRead("it is a flight record without entries and groups")
    members = {name: _members(one.get("ranks")) for name, one in groups.items()}
    operations = [_entry(one) for one in entries]
    plain = {
        "entries": operations,
        "pg_config": {
            name: {"desc": str(one.get("desc", "")), "ranks": str(list(members[name]) or "")}
            for name, one in groups.items()
        },
        "pg_status": data.get("pg_status", {}),
    }
    try:
        flight = record_of_dump(plain, 0)
    except msgspec.MsgspecError as error:
        raise NotRead(f"it is a flight record of another form ({error})") from error
    times = [one for entry in operations if 0 < (one := entry["time_created_ns"]) < LATEST_NS]
    limits = [one.get("timeout_ms") for one in entries[-1:]]
    world = next(
        (members[name] for name, one in groups.items() if one.get("desc") == "default_pg"),
        members.get("0", ()),
    )
    return Dump(
        path=str(path),
        flight=flight,
        ranks=_whose(members, operations, data.get("rank")),
        named=_number_in(path),
        world=world,
        numbers={
            group.group: max([group.last_enqueued, *(one.seq for one in group.messages)])
            for group in flight.groups
        },
        first_ns=min(times, default=0),
        last_ns=max(times, default=0),
        timeout_ns=max((one for one in limits if isinstance(one, int)), default=0) * 1_000_000,
    )


def _telling(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the entries that are open, and the newest that have ended, in their order.

    Parts of a block have its number, and end with it.
    """
    keys = [
        (one.get("pg_id"), one.get("collective_seq_id", one.get("seq_id")), one.get("p2p_seq_id"))
        for one in entries[-MOST_ENTRIES:]
    ]
    ended = {
        key
        for key, one in zip(keys, entries[-MOST_ENTRIES:], strict=True)
        if one.get("retired") or one.get("state") == "completed"
    }
    kept: list[dict[str, Any]] = []
    groups: set[object] = set()
    still = 0
    for key, one in zip(reversed(keys), reversed(entries), strict=False):
        over = key in ended
        still += not over
        if not over or len(kept) - still < MOST_ENDED or key[0] not in groups:
            kept.append(one)
            groups.add(key[0])
    kept.reverse()
    return kept if len(kept) <= 2 * MOST_OPEN else [*kept[:MOST_OPEN], *kept[-MOST_OPEN:]]


def _entry(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Take what is needed of an entry, in the newest form, no list longer than bounds allow."""
    entry = {name: raw[name] for name in FIELDS if raw.get(name) is not None}
    entry.setdefault("collective_seq_id", raw.get("seq_id", 0))  # before torch 2.4
    entry.setdefault("process_group", (str(raw.get("pg_id", 0)), ""))
    entry.setdefault("is_p2p", False)
    entry.setdefault("retired", False)
    entry.setdefault("time_created_ns", 0)
    sizes = _first(raw.get("input_sizes"), MOST_TENSORS)
    entry["process_group"] = tuple(map(str, _first(entry["process_group"], 2)))
    entry["input_sizes"] = [_first(one, MOST_DIMENSIONS) for one in sizes]
    entry["input_dtypes"] = _first(raw.get("input_dtypes"), MOST_TENSORS)
    calls = _first(raw.get("frames"), MOST_CALLS)
    entry["frames"] = [one for one in calls if isinstance(one, dict) and "filename" in one]
    return entry


def _first(values: object, most: int) -> Sequence[Any]:
    """Take the first of a list; a pickle may name one list a million times."""
    return values[:most] if isinstance(values, (list, tuple)) else ()


def _members(ranks: object) -> tuple[int, ...]:
    """Read ``"[0, 1]"``, or a list."""
    texts = re.findall(r"\d{1,8}", ranks) if isinstance(ranks, str) else ranks
    if not isinstance(texts, (list, tuple)):
        return ()
    return tuple(int(one) for one in texts if isinstance(one, (int, str)))


def _whose(
    members: Mapping[str, Sequence[int]], entries: Iterable[Mapping[str, Any]], told: object
) -> tuple[int, ...]:
    """Return the ranks that are in all its groups, and at that place of them."""
    if isinstance(told, int):
        return (told,)
    groups = [set(ranks) for ranks in members.values() if ranks]
    found = set.intersection(*groups) if groups else set()
    for one in entries:
        named = MESSAGE.search(one["profiling_name"]) if one["is_p2p"] else None
        ranks = members.get(one["process_group"][0], ())
        if named is not None and int(named[2]) < len(ranks):
            return (ranks[int(named[2])],) if ranks[int(named[2])] in found else ()
    return tuple(sorted(found))


def _number_in(path: Path) -> int | None:
    """Return the rank in a file's name: the number behind ``rank``, else the last one."""
    found = RANK_IN_NAME.findall(path.name) or NUMBER_IN_NAME.findall(path.name)
    return int(found[-1]) if found else None


# Which of them belong together.


class Incident(Struct):
    """Dumps of one job that were written at one time, by rank."""

    dumps: dict[int, Dump]

    def takes(self, rank: int, dump: Dump) -> bool:
        """Whether a dump belongs to it."""
        if rank in self.dumps:
            return False
        worlds = {one.world for one in self.dumps.values() if one.world}
        if worlds and dump.world and dump.world not in worlds:
            return False
        akin = self._numbers_agree(dump)
        if akin is False:
            return False
        times = [one.last_ns for one in self.dumps.values() if one.last_ns]
        if not times or not dump.last_ns:
            return True
        limit = max(SHORT_NS, 2 * max(one.timeout_ns for one in self.dumps.values()))
        near = min(abs(one - dump.last_ns) for one in times)
        return near <= (LONG_NS if akin else limit)

    def _numbers_agree(self, dump: Dump) -> bool | None:
        """None where they share no group."""
        shared = [
            abs(number - one.numbers[group]) <= NEAR
            for one in self.dumps.values()
            for group, number in dump.numbers.items()
            if one.numbers.get(group, 0) > 0 and number > 0
        ]
        return any(shared) if shared else None

    @property
    def when(self) -> str:
        """When its newest operation was entered, for a sentence."""
        newest = max((one.last_ns for one in self.dumps.values()), default=0)
        return utc(moment_of(newest), "seconds") if newest else "an unknown time"


def of_one_incident(dumps: Iterable[Dump]) -> tuple[dict[int, Dump], list[LeftOut]]:
    """Return the dumps of the incident of which most ranks are there, by rank, and the others."""
    incidents: list[Incident] = []
    left_out: list[LeftOut] = []
    for dump in sorted(dumps, key=lambda one: (not one.last_ns, one.last_ns, one.path)):
        rank = dump.rank
        if rank is None:
            fits = f"its groups fit {len(dump.ranks)} ranks" if dump.ranks else "it names no group"
            why = f"nothing says whose flight record it is: {fits}, and its name has no such number"
            left_out.append(LeftOut(dump.path, why))
            continue
        taken = next((one for one in reversed(incidents) if one.takes(rank, dump)), None)
        if taken is None:
            incidents.append(Incident({rank: dump}))
        else:
            taken.dumps[rank] = dump
    if not incidents:
        return {}, left_out
    newest = max(
        incidents,
        key=lambda one: (len(one.dumps), max(each.last_ns for each in one.dumps.values())),
    )
    for other in incidents:
        if other is not newest:
            why = f"it is of another incident or job, of {other.when}: read that by itself"
            left_out += [LeftOut(dump.path, why) for dump in other.dumps.values()]
    return newest.dumps, left_out
