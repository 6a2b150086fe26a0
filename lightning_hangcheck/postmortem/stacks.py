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
from lightning_hangcheck.postmortem.logs import LONGEST_LINE, Writer, rank_of_name, read_log

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path, PurePath

    from lightning_hangcheck.model.left_behind import LogReading

StackKind = Literal["py-spy", "py-spy json", "faulthandler", "gdb", "pystack"]
LARGEST = 16 * 1024 * 1024
"""Bytes read of a stack dump; as a log, the file is read to its end."""
MOST_FRAMES = 1_000
"""Per thread; of an endless stack the first in the file are kept, mostly the innermost."""
MOST_ODD = 0.05
"""Share of control characters that a text may have; tabs, line ends and colours do not count."""
_ODD = bytes(set(range(32)) - set(b"\t\n\r\x08\x0c\x1b"))
PACKAGES = TRAINING | {
    *("datasets", "fairseq", "filelock", "fsspec", "huggingface_hub", "lightning_utilities"),
    *("requests", "safetensors", "tqdm", "urllib3", "wandb"),
}


class TextForm(NamedTuple):
    """How a tool writes stacks: the beginning of its files, of a thread, and the calls."""

    begins: re.Pattern[bytes]
    thread: re.Pattern[str]
    frames: tuple[re.Pattern[str], ...]
    unnamed: tuple[str, ...] = ()
    """Begin the stack of a thread that no line named."""


_FILE_LINE = re.compile(
    r"^\s+(?:\(Python\) )?File \"(?P<file>[^\"]+)\", line (?P<line>\d{1,9}), in (?P<function>\S+)"
)
FORMS: dict[StackKind, TextForm] = {
    "py-spy": TextForm(
        re.compile(rb"^.{0,80}?Thread (?:0x[0-9A-Fa-f]+|\d+) \((?:active|idle)[^)]*\)", re.M),
        re.compile(
            r"^Thread (?:0x(?P<ident>[0-9A-Fa-f]+)|(?P<tid>\d{1,9})) \((?P<state>\w[\w+ ]*)\)"
            r"(?:: \"(?P<name>.*)\")?$"
        ),
        (re.compile(r"^ {2,}(?!File \")(?P<function>\S.*) \((?P<file>.+?):(?P<line>\d{1,9})\)$"),),
    ),
    "faulthandler": TextForm(
        re.compile(rb"[Tt]hread 0x[0-9a-f]+ .{0,120}?\(most recent call first\):"), THREAD, (FRAME,)
    ),
    "pystack": TextForm(
        re.compile(rb"^Traceback for thread \d+ ", re.M),
        re.compile(
            r"^Traceback for thread (?P<tid>\d{1,9})(?: \(.*?\))? .*\(most recent call last\):"
        ),
        (_FILE_LINE,),
    ),
    "gdb": TextForm(
        re.compile(
            rb"Frame 0x[0-9a-f]+, for file .+, line \d+, in |Traceback \(most recent call first\):"
        ),
        re.compile(
            r"^Thread \d+ \((?:Thread 0x(?P<ident>[0-9a-f]+)(?: \(LWP (?P<tid>\d{1,9})\))?"
            r"|LWP (?P<lone_tid>\d{1,9}))\)?"
        ),
        (
            re.compile(
                r"^#\d+\s+.*?Frame 0x[0-9a-f]+, for file (?P<file>.+?), line (?P<line>\d{1,9}),"
                r" in (?P<function>[^\s(]+)"
            ),
            _FILE_LINE,
        ),
        ("Traceback (most recent call first)",),
    ),
}
_PY_SPY_PROCESS = re.compile(r"^Process (\d{1,9}): ")
_RANK_LINE = re.compile(r"^\W*(?:<h\d>\s*)?(?:global[ _])?rank[ :_=#]{0,3}(\d{1,7})\b(?!\.)", re.I)


class StackDump(Struct, frozen=True, kw_only=True):
    """The stack of one process; its rank is None if no name, heading or prefix tells it."""

    file: str
    rank: int | None
    stack: ProcessStack


def stack_kind(head: bytes) -> StackKind | None:
    """Return the kind of stack dump that a file begins with; None if it is no stack dump."""
    if head.lstrip()[:1] == b"[" and b'"frames"' in head and b'"thread_id"' in head:
        return "py-spy json"
    return next((kind for kind, form in FORMS.items() if form.begins.search(head)), None)


def read_stack_file(path: str | PurePath, data: bytes) -> tuple[StackDump, ...]:
    """Read all stacks in the first 16 MiB of a file; empty if no stack can be read.

    ``path`` is its name, for quotes and for a rank in the name.
    """
    data = data[:LARGEST]
    kind = stack_kind(data[: 1024 * 1024])
    if kind is None:
        return ()
    if kind == "py-spy json":
        found = [(rank_of_name(path), stack) for stack in _of_json(data)]
    else:
        text = data.decode("utf-8", "replace").replace("\0", " ")
        text = html.unescape(text) if "<pre>" in text else text
        of_writers = _by_writer(text, rank_of_name(path))
        found = [(rank, stack) for rank, lines in of_writers for stack in _of_text(kind, lines)]
    seen: set[int | None] = set()
    kept = []
    for rank, stack in found:  # the file's rank is its first process's; its children follow
        kept.append(StackDump(file=str(path), rank=None if rank in seen else rank, stack=stack))
        seen.add(rank)
    return tuple(kept)


class _Dumped(DumpedThread):
    pid: int = 0


def _of_json(data: bytes) -> list[ProcessStack]:
    try:
        threads = json_decoder(list[_Dumped]).decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return []
    processes: dict[int, list[ThreadStack]] = {}
    for thread in threads:
        kept = [call for call in thread.frames if len(f"{call.filename}{call.name}") < LONGEST_LINE]
        shown = replace(thread, frames=kept).stack(MOST_FRAMES)
        processes.setdefault(thread.pid, []).append(shown)
    return [_stack("py-spy", pid, threads) for pid, threads in processes.items()]


def _by_writer(text: str, of_file: int | None) -> list[tuple[int | None, list[str]]]:
    """Separate the lines of each prefix, and what follows each heading; with the rank."""
    found: list[tuple[int | None, list[str]]] = []
    lines_of: dict[int | None, list[str]] = {}
    heading = None
    for line in text.splitlines():
        if len(line) > LONGEST_LINE:
            continue  # no path and no name is so long
        writer = Writer(line, labelled=True)
        rank = writer.rank if writer.rank is not None else writer.label
        body = line if rank is None else writer.text
        if (said := _RANK_LINE.match(body)) is not None:
            lines_of.pop(rank, None)
            heading = int(said[1])
            continue
        if rank not in lines_of:
            lines_of[rank] = []
            named = next((one for one in (rank, heading, of_file) if one is not None), None)
            found.append((named, lines_of[rank]))
        lines_of[rank].append(body.replace("<pre>", "").rstrip())
    return found


def _of_text(kind: StackKind, lines: Iterable[str]) -> Iterator[ProcessStack]:
    """Read processes one after the other; a thread that comes again begins a later dump."""
    form, pid = FORMS[kind], 0
    threads: list[tuple[ThreadStack, list[Frame]]] = []
    idents: set[int] = set()
    plain = unescaped if kind == "faulthandler" else str

    def stack() -> list[ProcessStack]:
        every = []
        for thread, frames in threads:
            kept = frames[:MOST_FRAMES][:: 1 if kind == "pystack" else -1]
            every += [replace(thread, frames=tuple(kept))] if kept else []
        threads.clear()
        idents.clear()
        return [_stack(kind, pid, every)] if every else []

    for line in lines:
        begins = _PY_SPY_PROCESS.match(line) if kind == "py-spy" else None
        found = form.thread.match(line)
        thread = None
        if found is not None:
            groups = found.groupdict(default="")
            tid, state = groups.get("tid") or groups.get("lone_tid"), groups.get("state", "")
            thread = ThreadStack(
                tid=int(tid) if tid else None,
                ident=int(groups.get("ident") or "0", 16),
                name=plain(groups.get("name", "")),
                active="active" in state,
                owns_gil="gil" in state,
            )
        elif line.startswith(form.unnamed) and not (threads and not threads[-1][1]):
            thread = ThreadStack(tid=None)
        if begins or (thread and thread.ident in idents):
            yield from stack()
            pid = 0
        if begins is not None:
            pid = int(begins[1])
        elif thread is not None:
            threads.append((thread, []))
            idents.update(filter(None, [thread.ident]))
        elif threads:
            matches = (pattern.match(line) for pattern in form.frames)
            if (call := next(filter(None, matches), None)) is not None:
                file = plain(call["file"])
                file = whole_path(file) if kind == "py-spy" else file
                number = int(call["line"])
                threads[-1][1].append(Frame(plain(call["function"]), file, number))
    yield from stack()


def _stack(source: str, pid: int, threads: list[ThreadStack]) -> ProcessStack:
    """Put the main thread first: by its name, its id, or the module that runs."""

    def is_no_main(thread: ThreadStack) -> tuple[bool, bool]:
        if thread.name:
            return thread.name != "MainThread", True
        begins = thread.frames[0].function if thread.frames else ""
        is_main = thread.tid == pid != 0 or begins in ("<module>", "_run_module_as_main")
        return not is_main, begins == "_bootstrap"

    every = tuple(sorted(threads, key=is_no_main))
    return ProcessStack(pid=pid, source=source, threads=every, from_file=True)


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


class Text(NamedTuple):
    """What a text file says about a job."""

    log: LogReading
    stacks: tuple[StackDump, ...]


def read_text(path: Path, file: BinaryIO, head: bytes) -> Text:
    """Read a log or a stack dump; `head` is its beginning.

    Raises:
        NotRead: It is no text, or says nothing about a job's ranks.
    """
    if len(head) - len(head.translate(None, _ODD)) > MOST_ODD * len(head):
        raise NotRead("its content is of no kind that is known")
    stacks: tuple[StackDump, ...] = ()
    data = b""
    if stack_kind(head) is not None:
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
