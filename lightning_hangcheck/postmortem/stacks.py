"""Reads stacks that somebody took into files, as live evidence has them.

Known by their content, never by their name: py-spy (text and ``--json``), faulthandler (also as
torch's debug handler and its worker server answer), gdb's ``py-bt``, and pystack. A file may hold
several processes one after the other, with a line before each that names its rank (``Rank 3:``,
``==== rank 3 ====``, the headings of torch's debug page), or prefixes of a launcher on every line.
Source lines, arguments and native calls between are skipped.
"""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec import Struct

from lightning_hangcheck.look.py_spy import DumpedThread
from lightning_hangcheck.look.signalled_stacks import FRAME, THREAD, unescaped
from lightning_hangcheck.model.code_owner import MODULES, TRAINING
from lightning_hangcheck.model.codec import json_decoder
from lightning_hangcheck.model.evidence import Frame, ProcessStack, ThreadStack
from lightning_hangcheck.postmortem.logs import Writer, rank_of_name

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import PurePath

StackKind = Literal["py-spy", "py-spy json", "faulthandler", "gdb", "pystack"]
LARGEST = 64 * 1024 * 1024
MOST_THREADS = 20_000
MOST_FRAMES = 1_000
"""Of a thread; a stack without an end keeps its innermost calls."""

_PY_SPY = re.compile(r"^Thread (0x[0-9A-Fa-f]+|\d+) \((\w[\w+ ]*)\)(?:: \"(.*)\")?\s*$")
_PY_SPY_PROCESS = re.compile(r"^Process (\d+): (.*)$")
_PY_SPY_FRAME = re.compile(r"^ {2,}(\S.*) \((.+?)(?::(\d+))?\)\s*$")
_GDB_THREAD = re.compile(
    r"^Thread (\d+) \((?:Thread (0x[0-9a-f]+)(?: \(LWP (\d+)\))?|LWP (\d+))\)?(.*)$"
)
_GDB_FRAME = re.compile(
    r"(?:^#\d+\s+.*?Frame 0x[0-9a-f]+, for file (?P<file>.+?), line (?P<line>\d+),"
    r" in (?P<name>[^\s(]+))"
    r"|(?:^\s+File \"(?P<file2>[^\"]+)\", line (?P<line2>\d+), in (?P<name2>\S+))"
)
_PYSTACK = re.compile(r"^Traceback for thread (\d+)(?: \((.*?)\))? .*\(most recent call last\):")
_PYSTACK_FRAME = re.compile(r"^\s+(?:\(Python\) )?File \"([^\"]+)\", line (\d+), in (\S+)")
_RANK_LINE = re.compile(r"^\W*(?:<h\d>\s*)?(?:global[ _])?rank[ :_=#]{0,3}(\d{1,7})\b(?!\.)", re.I)
_LINE_OF_FILE = re.compile(r'^\s+File "')


_PACKAGES = TRAINING | {
    "datasets",
    "fairseq",
    "lightning_utilities",
    "safetensors",
    "tqdm",
    "wandb",
}


def whole_path(file: str) -> str:
    """Return the path of a file that py-spy's text shortened, as far as its name tells.

    It shows ``torch/nn/modules/module.py`` and ``threading.py`` of what is on the interpreter's
    path, whose files would be taken for the user's own.
    """
    top = file.partition("/")[0]
    if file.startswith(("/", "<", "\\")) or ":" in file:
        return file
    if top in _PACKAGES:
        return f"/site-packages/{file}"
    return f"/lib/python3/{file}" if top.removesuffix(".py") in MODULES else file


class StackDump(Struct, frozen=True, kw_only=True):
    """The stack of one process, out of a file.

    Attributes:
        rank: By the file's name, a heading or a prefix; None where nothing tells.
        command: Of the process, where the dump tells it.
        line: Where it begins in the file.
    """

    file: str
    line: int
    rank: int | None
    stack: ProcessStack
    command: str = ""


def looks_like_py_spy_text(head: bytes) -> bool:
    """Whether the beginning of a file is a dump of py-spy as text."""
    text = head.decode("utf-8", "replace")
    return bool(
        re.search(r"^.{0,80}?Thread (?:0x[0-9A-Fa-f]+|\d+) \((?:active|idle)[^)]*\)", text, re.M)
    )


def looks_like_py_spy_json(head: bytes) -> bool:
    """Whether the beginning of a file is ``py-spy dump --json``."""
    return head.lstrip()[:1] == b"[" and b'"frames"' in head and b'"thread_id"' in head


def looks_like_faulthandler(head: bytes) -> bool:
    """Whether the beginning of a file is what faulthandler writes."""
    return (
        re.search(rb"[Tt]hread 0x[0-9a-f]+ .{0,120}?\(most recent call first\):", head) is not None
    )


def looks_like_gdb(head: bytes) -> bool:
    """Whether the beginning of a file has Python frames as gdb shows them."""
    return (
        re.search(rb"Frame 0x[0-9a-f]+, for file .+, line \d+, in ", head) is not None
        or b"Traceback (most recent call first):" in head
    )


def looks_like_pystack(head: bytes) -> bool:
    """Whether the beginning of a file is what pystack writes."""
    return re.search(rb"^Traceback for thread \d+ ", head, re.M) is not None


_KINDS: tuple[tuple[StackKind, Callable[[bytes], bool]], ...] = (
    ("py-spy json", looks_like_py_spy_json),
    ("py-spy", looks_like_py_spy_text),
    ("faulthandler", looks_like_faulthandler),
    ("pystack", looks_like_pystack),
    ("gdb", looks_like_gdb),
)


def stack_kind(head: bytes) -> StackKind | None:
    """Return what kind of stack dump a file begins with, None if it is none.

    Args:
        head: Its first bytes; 64 KiB are enough.
    """
    return next((kind for kind, looks in _KINDS if looks(head)), None)


def read_stack_file(path: str | PurePath, data: bytes) -> tuple[StackDump, ...]:
    """Read all stacks of a file; none where it is no dump, or holds none that can be read.

    Args:
        path: Its name: for what is quoted, and for a rank in it.
        data: What is in it; beyond 64 MiB it is cut.
    """
    data = data[:LARGEST]
    kind = stack_kind(data[: 1024 * 1024])
    if kind is None:
        return ()
    if kind == "py-spy json":
        return _from_json(str(path), data)
    return _Scan(str(path), kind).read(data.decode("utf-8", "replace").replace("\0", " "))


class _Dumped(DumpedThread):
    pid: int = 0


def _from_json(path: str, data: bytes) -> tuple[StackDump, ...]:
    try:
        threads = json_decoder(list[_Dumped]).decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ()
    found = []
    for pid in dict.fromkeys(one.pid for one in threads):
        stacks = [one.stack(MOST_FRAMES) for one in threads[:MOST_THREADS] if one.pid == pid]
        found.append(_dump(path, 1, rank_of_name(path), pid, "py-spy", "", stacks))
    return _once_a_rank(found)


def _dump(
    path: str, line: int, rank: int | None, pid: int, source: str, command: str,
    threads: list[ThreadStack],
) -> StackDump:  # fmt: skip
    """Put the main thread first: by its name, its number, or because it began a module."""

    def is_main(one: ThreadStack) -> bool:
        if one.name:
            return one.name == "MainThread"
        begins = one.frames[0].function if one.frames else ""
        return one.tid == pid != 0 or begins in ("<module>", "_run_module_as_main")

    ordered = tuple(sorted(threads, key=lambda one: not is_main(one)))
    stack = ProcessStack(pid=pid, source=source, threads=ordered, from_file=True)
    return StackDump(file=path, line=line, rank=rank, stack=stack, command=command)


def _once_a_rank(dumps: list[StackDump]) -> tuple[StackDump, ...]:
    """A file's rank is the first process's: those after it are its children."""
    seen: set[int] = set()
    kept = []
    for one in dumps:
        again = one.rank in seen
        if one.rank is not None:
            seen.add(one.rank)
        kept.append(one if not again else msgspec.structs.replace(one, rank=None))
    return tuple(kept)


class _Scan:
    """Goes through the lines of a text: a heading, a process, its threads, their frames."""

    def __init__(self, path: str, kind: StackKind) -> None:
        self.path, self.kind = path, kind
        self.of_file = rank_of_name(path)
        self.found: list[StackDump] = []
        self.heading: int | None = None
        self.open: dict[int | None, _Process] = {}

    def read(self, text: str) -> tuple[StackDump, ...]:
        if "<pre>" in text:
            text = html.unescape(text)
        for number, line in enumerate(text.splitlines(), start=1):
            writer = Writer(line, labelled=True)
            rank = writer.rank if writer.rank is not None else writer.label
            body = writer.text if rank is not None else line
            heading = _RANK_LINE.match(body)
            if heading is not None:
                self._close(rank)
                self.heading = int(heading[1])
                continue
            self._line(number, rank, body.replace("<pre>", ""))
        for key in tuple(self.open):
            self._close(key)
        return _once_a_rank(self.found)

    def _line(self, number: int, rank: int | None, line: str) -> None:
        begins = _PY_SPY_PROCESS.match(line) if self.kind == "py-spy" else None
        if begins is not None:
            self._close(rank)
            self._process(number, rank).name(int(begins[1][:9]), begins[2])
        elif (thread := self._thread(line)) is not None:
            now = self._process(number, rank)
            if thread.ident and any(one.ident == thread.ident for one in now.threads):
                self._close(rank)  # the same thread once more: a later dump of the process
                now = self._process(number, rank)
            now.begin(thread)
        elif (frame := self._frame(line)) is not None and rank in self.open:
            self.open[rank].frames.append(frame)

    def _process(self, number: int, rank: int | None) -> _Process:
        if rank not in self.open:
            told = rank if rank is not None else self.heading
            self.open[rank] = _Process(number, told if told is not None else self.of_file)
        return self.open[rank]

    def _close(self, key: int | None) -> None:
        now = self.open.pop(key, None)
        if now is None:
            return
        now.begin(None)
        outward = self.kind != "pystack"
        threads = [
            msgspec.structs.replace(one, frames=one.frames[::-1] if outward else one.frames)
            for one in now.threads
            if one.frames
        ]
        if threads:
            source = "faulthandler" if self.kind == "faulthandler" else self.kind
            self.found.append(
                _dump(self.path, now.line, now.rank, now.pid, source, now.command, threads)
            )

    def _thread(self, line: str) -> ThreadStack | None:
        """Read the line that begins a thread; None if it is none."""
        if self.kind == "py-spy" and (found := _PY_SPY.match(line)):
            number = int(found[1], 0)
            is_tid = not found[1].startswith("0x")
            return ThreadStack(tid=number if is_tid else None, ident=0 if is_tid else number,
                               name=found[3] or "", active="active" in found[2],
                               owns_gil="gil" in found[2])  # fmt: skip
        if self.kind == "faulthandler" and (found := THREAD.match(line.rstrip())):
            return ThreadStack(
                tid=None, ident=int(found["ident"], 16), name=unescaped(found["name"] or "")
            )
        if self.kind == "pystack" and (found := _PYSTACK.match(line)):
            return ThreadStack(tid=int(found[1][:9]), name="")
        if self.kind == "gdb":
            if found := _GDB_THREAD.match(line):
                tid = found[3] or found[4]
                return ThreadStack(
                    tid=int(tid[:9]) if tid else None, ident=int(found[2] or "0", 16)
                )
            if line.startswith("Traceback (most recent call first)") and not self._in_thread():
                return ThreadStack(tid=None)
        return None

    def _in_thread(self) -> bool:
        return any(one.current is not None and not one.frames for one in self.open.values())

    def _frame(self, line: str) -> Frame | None:
        """Read the line of a call; None if it is none, or one of native code."""
        if self.kind == "py-spy":
            found = _PY_SPY_FRAME.match(line)
            if found is None or _LINE_OF_FILE.match(line) or not found[3]:
                return None
            return Frame(found[1].strip(), whole_path(found[2]), int(found[3][:9]))
        if self.kind == "faulthandler":
            told = FRAME.match(line.rstrip())
            if told is None:
                return None
            return Frame(
                unescaped(told["function"]), unescaped(told["file"]), int(told["line"][:9])
            )
        if self.kind == "pystack":
            told = _PYSTACK_FRAME.match(line)
            return Frame(told[3], told[1], int(told[2][:9])) if told else None
        told = _GDB_FRAME.search(line)
        if told is None:
            return None
        name, file, number = (told[one] or told[f"{one}2"] for one in ("name", "file", "line"))
        return Frame(name, file, int(number[:9]))


class _Process:
    def __init__(self, line: int, rank: int | None) -> None:
        self.line, self.rank = line, rank
        self.pid, self.command = 0, ""
        self.threads: list[ThreadStack] = []
        self.current: ThreadStack | None = None
        self.frames: list[Frame] = []

    def name(self, pid: int, command: str) -> None:
        self.pid, self.command = pid, command.strip()

    def begin(self, thread: ThreadStack | None) -> None:
        """Keep the thread that was being read, and go on with another."""
        if self.current is not None and len(self.threads) < MOST_THREADS:
            frames = tuple(self.frames[:MOST_FRAMES])
            self.threads.append(msgspec.structs.replace(self.current, frames=frames))
        self.current, self.frames = thread, []
