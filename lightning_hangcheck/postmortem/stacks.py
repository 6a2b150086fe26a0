"""Reads stacks that somebody saved in files, in the form of live evidence.

Files are recognised by content, not by name: py-spy (text and ``--json``), faulthandler (also the
answers of torch's debug handler and worker server), gdb's ``py-bt``, and pystack. A file may hold
several processes one after the other. A line before each may name its rank (``Rank 3:``,
``==== rank 3 ====``, the headings of torch's debug page), or each line has a launcher's prefix.
Source lines, arguments and native calls are skipped.
"""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING, BinaryIO, Literal, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from lightning_hangcheck.look.stacks import FRAME, THREAD, DumpedThread, unescaped
from lightning_hangcheck.model.code_owner import MODULES, TRAINING
from lightning_hangcheck.model.codec import json_decoder
from lightning_hangcheck.model.evidence import Frame, ProcessStack, ThreadStack
from lightning_hangcheck.postmortem.files import NotRead
from lightning_hangcheck.postmortem.logs import Writer, rank_of_name, read_log

if TYPE_CHECKING:
    from pathlib import Path, PurePath

    from lightning_hangcheck.model.left_behind import LogReading

StackKind = Literal["py-spy", "py-spy json", "faulthandler", "gdb", "pystack"]
LARGEST = 16 * 1024 * 1024
"""Bytes read of a stack dump; as a log, the file is read to its end."""
MOST_THREADS = 20_000
MOST_FRAMES = 1_000
"""Per thread; of an endless stack the first in the file are kept, mostly the innermost."""
MOST_ODD = 0.05
"""Share of control characters that a text may have; tabs, line ends and colours do not count."""
_ODD = bytes(set(range(32)) - set(b"\t\n\r\x08\x0c\x1b"))
LONGEST_NUMBER = 9
"""Digits read of a pid, a thread's id or a line number."""
PACKAGES = TRAINING | {"datasets", "fairseq", "lightning_utilities", "safetensors", "tqdm", "wandb"}
GDB_UNNAMED = "Traceback (most recent call first)"
"""``py-bt`` writes this if no line named the thread."""


class TextForm(NamedTuple):
    """How a tool writes stacks.

    Attributes:
        begins: Found near the beginning of its files.
        thread: A line that begins a thread: its ``tid`` or ``ident``, ``name``, ``state``.
        frames: Lines of a call: ``function``, ``file``, ``line``.
    """

    begins: re.Pattern[bytes]
    thread: re.Pattern[str]
    frames: tuple[re.Pattern[str], ...]


_FILE_LINE = re.compile(
    r"^\s+(?:\(Python\) )?File \"(?P<file>[^\"]+)\", line (?P<line>\d+), in (?P<function>\S+)"
)
FORMS: dict[StackKind, TextForm] = {
    "py-spy": TextForm(
        re.compile(rb"^.{0,80}?Thread (?:0x[0-9A-Fa-f]+|\d+) \((?:active|idle)[^)]*\)", re.M),
        re.compile(
            r"^Thread (?:0x(?P<ident>[0-9A-Fa-f]+)|(?P<tid>\d+)) \((?P<state>\w[\w+ ]*)\)"
            r"(?:: \"(?P<name>.*)\")?$"
        ),
        (re.compile(r"^ {2,}(?!File \")(?P<function>\S.*) \((?P<file>.+?):(?P<line>\d+)\)$"),),
    ),
    "faulthandler": TextForm(
        re.compile(rb"[Tt]hread 0x[0-9a-f]+ .{0,120}?\(most recent call first\):"), THREAD, (FRAME,)
    ),
    "pystack": TextForm(
        re.compile(rb"^Traceback for thread \d+ ", re.M),
        re.compile(r"^Traceback for thread (?P<tid>\d+)(?: \(.*?\))? .*\(most recent call last\):"),
        (_FILE_LINE,),
    ),
    "gdb": TextForm(
        re.compile(
            rb"Frame 0x[0-9a-f]+, for file .+, line \d+, in |Traceback \(most recent call first\):"
        ),
        re.compile(
            r"^Thread \d+ \((?:Thread 0x(?P<ident>[0-9a-f]+)(?: \(LWP (?P<tid>\d+)\))?"
            r"|LWP (?P<lone_tid>\d+))\)?"
        ),
        (
            re.compile(
                r"^#\d+\s+.*?Frame 0x[0-9a-f]+, for file (?P<file>.+?), line (?P<line>\d+),"
                r" in (?P<function>[^\s(]+)"
            ),
            _FILE_LINE,
        ),
    ),
}
_PY_SPY_PROCESS = re.compile(r"^Process (\d+): ")
_RANK_LINE = re.compile(r"^\W*(?:<h\d>\s*)?(?:global[ _])?rank[ :_=#]{0,3}(\d{1,7})\b(?!\.)", re.I)


class StackDump(Struct, frozen=True, kw_only=True):
    """The stack of one process, read from a file.

    Attributes:
        rank: By the file's name, a heading or a prefix; None if unknown.
    """

    file: str
    rank: int | None
    stack: ProcessStack


def stack_kind(head: bytes) -> StackKind | None:
    """Return the kind of stack dump that a file begins with; None if it is no stack dump.

    Args:
        head: First bytes of the file; 64 KiB are enough.
    """
    if head.lstrip()[:1] == b"[" and b'"frames"' in head and b'"thread_id"' in head:
        return "py-spy json"
    return next((kind for kind, form in FORMS.items() if form.begins.search(head)), None)


def read_stack_file(path: str | PurePath, data: bytes) -> tuple[StackDump, ...]:
    """Read all stacks of a file; empty if it is no stack dump or no stack can be read.

    Args:
        path: Name of the file, for quotes and for a rank in the name.
        data: Content of the file; only the first 16 MiB are read.
    """
    data = data[:LARGEST]
    kind = stack_kind(data[: 1024 * 1024])
    if kind is None:
        return ()
    scan = _Scan(str(path), kind)
    if kind == "py-spy json":
        scan.read_json(data)
    else:
        text = data.decode("utf-8", "replace").replace("\0", " ")
        scan.read(html.unescape(text) if "<pre>" in text else text)
    seen: set[int | None] = set()
    kept = []
    for dump in scan.found:  # the file's rank is its first process's; its children follow
        kept.append(dump if dump.rank not in seen else replace(dump, rank=None))
        seen.add(dump.rank)
    return tuple(kept)


class _Dumped(DumpedThread):
    pid: int = 0


class _Process(Struct):
    """What was read of a process so far; ``frames`` are those of the thread being read."""

    rank: int | None
    pid: int = 0
    threads: list[ThreadStack] = []
    current: ThreadStack | None = None
    frames: list[Frame] = []


class _Scan:
    """Reads a text line by line: a heading, a process, its threads, their frames."""

    def __init__(self, path: str, kind: StackKind) -> None:
        self.path, self.kind = path, kind
        self.of_file = rank_of_name(path)
        self.found: list[StackDump] = []
        self.heading: int | None = None
        self.open: dict[int | None, _Process] = {}

    def read_json(self, data: bytes) -> None:
        try:
            threads = json_decoder(list[_Dumped]).decode(data)[:MOST_THREADS]
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return
        for dumped in threads:
            self.open.setdefault(dumped.pid, _Process(self.of_file, dumped.pid))
            self.open[dumped.pid].threads.append(dumped.stack(MOST_FRAMES))
        for pid in tuple(self.open):
            self._close(pid)

    def read(self, text: str) -> None:
        for line in text.splitlines():
            writer = Writer(line, labelled=True)
            rank = writer.rank if writer.rank is not None else writer.label
            body = writer.text if rank is not None else line
            if (heading := _RANK_LINE.match(body)) is not None:
                self._close(rank)
                self.heading = int(heading[1])
            else:
                self._line(rank, body.replace("<pre>", "").rstrip())
        for key in tuple(self.open):
            self._close(key)

    def _line(self, rank: int | None, line: str) -> None:
        begins = _PY_SPY_PROCESS.match(line) if self.kind == "py-spy" else None
        thread = self._thread(line)
        now = self.open.get(rank)
        again = thread and thread.ident and thread.ident in [known.ident for known in _threads(now)]
        if begins is not None or again:  # the thread again: a later dump of the process
            self._close(rank)
        if begins is not None or thread is not None:
            numbers = [
                number for number in (rank, self.heading, self.of_file) if number is not None
            ]
            now = self.open.setdefault(rank, _Process(numbers[0] if numbers else None))
            if begins is not None:
                now.pid = int(begins[1][:LONGEST_NUMBER])
            else:
                self._end_thread(now, thread)
        elif now is not None and now.current is not None:
            matches = (pattern.match(line) for pattern in FORMS[self.kind].frames)
            if (found := next(filter(None, matches), None)) is not None:
                file = self._plain(found["file"])
                file = whole_path(file) if self.kind == "py-spy" else file
                number = int(found["line"][:LONGEST_NUMBER])
                now.frames.append(Frame(self._plain(found["function"]), file, number))

    def _end_thread(self, process: _Process, following: ThreadStack | None) -> None:
        """Keep the thread that was being read, if it has frames, and begin another."""
        frames = process.frames[:MOST_FRAMES]
        if process.current is not None and frames and len(process.threads) < MOST_THREADS:
            outermost_first = frames if self.kind == "pystack" else frames[::-1]
            process.threads.append(replace(process.current, frames=tuple(outermost_first)))
        process.current, process.frames = following, []

    def _close(self, key: int | None) -> None:
        """Keep a process, its main thread first: by its name, its id, or the module that runs."""
        now = self.open.pop(key, None)
        if now is None:
            return
        self._end_thread(now, None)

        def is_no_main(thread: ThreadStack) -> tuple[bool, bool]:
            if thread.name:
                return thread.name != "MainThread", True
            begins = thread.frames[0].function if thread.frames else ""
            is_main = thread.tid == now.pid != 0 or begins in ("<module>", "_run_module_as_main")
            return not is_main, begins == "_bootstrap"

        if now.threads:
            threads = tuple(sorted(now.threads, key=is_no_main))
            source = "py-spy" if self.kind == "py-spy json" else self.kind
            stack = ProcessStack(pid=now.pid, source=source, threads=threads, from_file=True)
            self.found.append(StackDump(file=self.path, rank=now.rank, stack=stack))

    def _thread(self, line: str) -> ThreadStack | None:
        """Read a line that begins a thread; None if it does not."""
        found = FORMS[self.kind].thread.match(line)
        if found is not None:
            groups = found.groupdict(default="")
            tid = groups.get("tid") or groups.get("lone_tid")
            state = groups.get("state", "")
            return ThreadStack(
                tid=int(tid[:LONGEST_NUMBER]) if tid else None,
                ident=int(groups.get("ident") or "0", 16),
                name=self._plain(groups.get("name", "")),
                active="active" in state,
                owns_gil="gil" in state,
            )
        inside = any(
            process.current is not None and not process.frames for process in self.open.values()
        )
        if self.kind == "gdb" and line.startswith(GDB_UNNAMED) and not inside:
            return ThreadStack(tid=None)
        return None

    def _plain(self, text: str) -> str:
        return unescaped(text) if self.kind == "faulthandler" else text


def _threads(process: _Process | None) -> list[ThreadStack]:
    return [] if process is None else [*process.threads, *filter(None, [process.current])]


def whole_path(file: str) -> str:
    """Return the path of a file that py-spy's text shortened, as far as its name shows.

    For modules on the interpreter's path py-spy shows ``torch/nn/modules/module.py`` and
    ``threading.py``, which would be taken for the user's own files.
    """
    top = file.partition("/")[0]
    if file.startswith(("/", "<", "\\")) or ":" in file:
        return file
    if top in PACKAGES:
        return f"/site-packages/{file}"
    return f"/lib/python3/{file}" if top.removesuffix(".py") in MODULES else file


# A text: a log, and any stacks saved in it.


class Text(NamedTuple):
    """What a text file says about a job."""

    log: LogReading
    stacks: tuple[StackDump, ...]


def is_text(head: bytes) -> bool:
    """Whether a file begins like a text."""
    return len(head) - len(head.translate(None, _ODD)) <= MOST_ODD * len(head)


def read_text(path: Path, file: BinaryIO) -> Text:
    """Read a log or a stack dump.

    Raises:
        NotRead: It says nothing about a job's ranks.
    """
    stacks: tuple[StackDump, ...] = ()
    data = b""
    if stack_kind(file.peek()) is not None:  # type: ignore[attr-defined]
        data = file.read(LARGEST)
        stacks = read_stack_file(path, data)
    log = read_log(path, file, data)
    if any("Fatal Python error" in fact.error for fact in log.facts):
        stacks = ()  # of a process that a signal ended, not of a stuck one
    if len(stacks) == 1 and stacks[0].rank is None and len(log.ranks) == 1:
        stacks = (replace(stacks[0], rank=log.ranks[0]),)  # saved in that rank's log
    if not stacks and not log.facts and not log.ranks:
        raise NotRead("it is a text that says nothing of ranks")
    return Text(log, stacks)
