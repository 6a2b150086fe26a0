"""The environment that a process has now, read from its memory.

/proc/PID/environ shows the one that it was started with. Some launchers number their ranks later:
an actor of Ray Train sets its variables long after its start (ray 2.60,
train/v2/_internal/execution/worker_group/worker_group.py), and so does a function that a script
spawns. Python hands each change on to the C library, whose ``environ`` leads to all variables. The
address of that stands in the table of symbols of the program, where it refers to it (a copy
relocation), else in that of the C library. Both are read from memory, too: no file of a disk that
may not answer, and no other container's.

Layouts: elf(5), and https://sourceware.org/gnu-gabi/program-loading-and-dynamic-linking.txt for the
hash table. Of 64 bits and little-endian, as all machines are on which torch runs.
"""

from __future__ import annotations

import os
from functools import partial
from struct import unpack_from
from typing import TYPE_CHECKING, NamedTuple

from lightning_hangcheck.look.proc import GONE, explain, read_access, read_table
from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.time_limit import NoAnswer, within

if TYPE_CHECKING:
    from collections.abc import Iterator

READ_LIMIT_S = 1.0
C_LIBRARIES = ("libc.so", "libc-", "ld-musl-", "libc.musl-")
NAMES = (b"environ", b"__environ")
ELF_HEADER = b"\x7fELF\x02\x01"
PT_DYNAMIC = 2
DT_NULL, DT_STRTAB, DT_SYMTAB, DT_GNU_HASH = 0, 5, 6, 0x6FFFFEF5
FIXED_ADDRESSES = 2  # ET_EXEC
MOST_VARIABLES = 4096
LONGEST_VARIABLE = 4096
"""What is longer is cut: no number of a rank is, nor an address."""
ATTEMPTS = 3
"""A variable that is set meanwhile may move all of them."""


class Unreadable(Exception):
    """These bytes are not what a program's memory should hold there."""


class Loaded(NamedTuple):
    """A program or library in memory.

    Attributes:
        base: Where its file begins.
        offset: What is added to the addresses that it names.
    """

    base: int
    offset: int


def present_environment(pid: int) -> dict[str, str] | Gap:
    """Read the variables of a process as they are now; about 2 ms.

    The process is not stopped. What changes while it is read is read again.

    Args:
        pid: The process; its memory must be readable as for its stacks.
    """
    what = f"present environment of pid {pid}"
    try:
        return within(READ_LIMIT_S, partial(_read, pid), of=pid)
    except GONE:
        return Gap(what, None, "the process has ended", "process_memory")
    except PermissionError:
        refusal = explain(read_access(pid))
        return Gap(what, None, refusal.why, "process_memory", refusal.remedy)
    except (Unreadable, NoAnswer, OSError) as error:
        return Gap(what, None, f"its memory cannot be read ({error})", "process_memory")


def _read(pid: int) -> dict[str, str]:
    """Raises: OSError and Unreadable, as said above."""
    bases = list(_bases(pid))
    descriptor = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        memory = Memory(descriptor)
        pointer = next(filter(None, (_find_environ(memory, base) for base in bases)), None)
        if pointer is None:
            raise Unreadable("neither its program nor its C library names its environment")
        return _variables(memory, pointer)
    finally:
        os.close(descriptor)


class Memory:
    """The memory of a process, by address."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def upto(self, address: int, most: int) -> bytes:
        """Read at most so many bytes: fewer where memory ends."""
        try:
            return os.pread(self._descriptor, most, address)
        except (OSError, OverflowError) as error:
            raise Unreadable(f"nothing is at {address:#x}") from error

    def fields(self, form: str, size: int, address: int) -> tuple[int, ...]:
        """Read numbers.

        Raises:
            Unreadable: There are none.
        """
        data = self.upto(address, size)
        if len(data) < size:
            raise Unreadable(f"memory ends at {address:#x}")
        return unpack_from(form, data)

    def text(self, address: int, most: int = LONGEST_VARIABLE) -> bytes:
        """Read a text up to its NUL."""
        return self.upto(address, most).partition(b"\0")[0]


def _bases(pid: int) -> Iterator[int]:
    """Where the program begins in memory, then the C library."""
    program = os.readlink(f"/proc/{pid}/exe")  # noqa: PTH115 - a name, no path
    rows = [row for row in read_table(f"/proc/{pid}/maps") if len(row) > 5]
    begins = [row for row in rows if int(row[2], 16) == 0]
    starts = {row[5]: int(row[0].partition("-")[0], 16) for row in reversed(begins)}
    libraries = [name for name in starts if name.rpartition("/")[2].startswith(C_LIBRARIES)]
    yield from (starts[name] for name in (program, *libraries) if name in starts)


def _find_environ(memory: Memory, base: int) -> int | None:
    """Return the address of ``environ``, None where this file does not define it."""
    if memory.upto(base, len(ELF_HEADER)) != ELF_HEADER:
        raise Unreadable(f"no program of 64 bits begins at {base:#x}")
    (kind,) = memory.fields("<H", 2, base + 16)
    first, size, count = *memory.fields("<Q", 8, base + 32), *memory.fields("<HH", 4, base + 54)
    loaded = Loaded(base, 0 if kind == FIXED_ADDRESSES else base)
    for number in range(count):
        segment, _, _, address = memory.fields("<IIQQ", 24, base + first + number * size)
        if segment == PT_DYNAMIC:
            return _in_symbols(memory, loaded, _tables(memory, loaded.offset + address))
    return None


def _tables(memory: Memory, address: int) -> dict[int, int]:
    tables: dict[int, int] = {}
    for number in range(MOST_VARIABLES):
        tag, value = memory.fields("<QQ", 16, address + 16 * number)
        if tag == DT_NULL:
            break
        tables[tag] = value
    return tables


def _in_symbols(memory: Memory, loaded: Loaded, tables: dict[int, int]) -> int | None:
    """Look the names up as the dynamic linker does; it has made some addresses absolute."""
    if not {DT_STRTAB, DT_SYMTAB, DT_GNU_HASH} <= tables.keys():
        return None
    absolute = {
        tag: value if value >= loaded.base else value + loaded.offset
        for tag, value in tables.items()
    }
    for name in NAMES:
        for symbol in _of_hash(memory, absolute[DT_GNU_HASH], _hash(name)):
            at = absolute[DT_SYMTAB] + 24 * symbol
            text, _, _, section, value, _ = memory.fields("<IBBHQQ", 24, at)
            named = memory.text(absolute[DT_STRTAB] + text, len(name) + 1) == name
            if named and section:
                return value + loaded.offset
    return None


def _of_hash(memory: Memory, table: int, wanted: int) -> Iterator[int]:
    """Numbers of the symbols that may have this hash."""
    buckets, first, filters, _ = memory.fields("<IIII", 16, table)
    at = table + 16 + 8 * filters
    (symbol,) = memory.fields("<I", 4, at + 4 * (wanted % max(1, buckets)))
    while symbol >= first:
        (found,) = memory.fields("<I", 4, at + 4 * buckets + 4 * (symbol - first))
        if found | 1 == wanted | 1:
            yield symbol
        if found & 1:
            return
        symbol += 1


def _hash(name: bytes) -> int:
    value = 5381
    for letter in name:
        value = (value * 33 + letter) & 0xFFFFFFFF
    return value


def _variables(memory: Memory, pointer: int) -> dict[str, str]:
    """Follow ``environ``; once more where it led elsewhere meanwhile."""
    for _ in range(ATTEMPTS):
        (array,) = memory.fields("<Q", 8, pointer)
        addresses = _addresses(memory, array)
        texts = [memory.text(address) for address in addresses]
        if (array,) == memory.fields("<Q", 8, pointer) and addresses == _addresses(memory, array):
            pairs = (text.decode(errors="surrogateescape").partition("=") for text in texts)
            return {name: value for name, equals, value in pairs if equals}
    raise Unreadable("it changes again and again")


def _addresses(memory: Memory, array: int) -> list[int]:
    data = memory.upto(array, 8 * MOST_VARIABLES) if array else b""
    whole = len(data) // 8
    addresses = unpack_from(f"<{whole}Q", data)
    return list(addresses[: addresses.index(0)]) if 0 in addresses else []
