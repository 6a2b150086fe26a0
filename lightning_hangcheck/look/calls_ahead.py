"""Whether what a thread runs from a line on calls collectives, or may end another thread's wait.

A heartbeat's loop does neither. Read from the source alone, with the functions of the same file
that it calls. Where anything is called that may do as it likes, a function that was handed in or
one of another file of the user's, nothing is known.
"""

from __future__ import annotations

import ast
import builtins
import collections
import io
import logging
import pathlib
import queue
import re
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from lightning_hangcheck.look.syntax import LOOPS, around, function_around

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

Function: TypeAlias = "ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef"
Answer: TypeAlias = "bool | None"
OF_TORCH = frozenset(
    {
        *("send", "recv", "isend", "irecv", "batch_isend_irecv", "scatter", "gather", "reduce"),
        *("new_group", "init_process_group", "destroy_process_group", "new_subgroups"),
        *("save", "async_save", "load"),
    }
)
"""Of torch.distributed and torch.distributed.checkpoint; elsewhere such names mean anything."""
MEETS = re.compile(
    r"_?(all_(reduce|gather|to_all)|reduce_scatter|broadcast|(monitored_)?barrier|gather_object"
    r"|scatter_object|reduce_boolean|wait_for_everyone|backward|save_checkpoint|rank_zero_first"
    r"|main_process_first|guarded_wandb_logger)(_\w+)?"
)
"""Functions in which ranks meet, whoever has them: torch, Lightning, accelerate, transformers."""
HARMLESS_PACKAGES = frozenset(
    {
        *("numpy", "psutil", "pynvml", "requests", "httpx", "tqdm", "rich", "loguru", "wandb"),
        *("prometheus_client", "tensorboard", "tensorboardX", "yaml", "PIL", "lightning_hangcheck"),
    }
)
"""Installed packages whose calls make no collective; of all others nothing is known."""
KINDS = (
    *(str, bytes, bytearray, int, float, list, tuple, dict, set, collections.deque),
    *(threading.Thread, threading.Event, threading.Condition, threading.Barrier, threading.Timer),
    *(queue.Queue, queue.SimpleQueue, subprocess.Popen, socket.socket, pathlib.Path),
    *(io.TextIOWrapper, io.BufferedRandom, logging.Logger, logging.Handler),
)
HARMLESS_METHODS = frozenset(
    {name for kind in KINDS for name in dir(kind) if not name.startswith("__")}
    - {"run", "handle", "emit", "filter"}
    | {"acquire", "release", "recv_bytes", "send_bytes", "poll", "get_nowait", "put_nowait"}
    | {"cpu_percent", "memory_info", "add_scalar", "inc", "observe", "set_description"}
)
"""What methods of everyday objects are called: whatever has them is taken for such an object."""
WAKES = frozenset(
    {
        *("release", "set", "put", "put_nowait", "notify", "notify_all", "notifyAll", "abort"),
        *("set_result", "set_exception", "cancel", "task_done", "shutdown", "reset", "close"),
        *("send", "sendall", "send_bytes", "call_soon_threadsafe", "interrupt_main", "stop"),
        *("get", "get_nowait", "start"),
    }
)
"""What gives back a lock, or brings what another thread waits for: room in a queue, too."""
BARRIER = "barrier"
"""Who comes to one ends the wait of all others there, by a call that only waits elsewhere."""
MOST_FUNCTIONS = 64
"""Followed from one line: more is a program, and no loop of a helper's."""


class _Asked(NamedTuple):
    """What is asked of each call: by its path as imported, and which methods are harmless."""

    is_it: Callable[[str], bool]
    harmless: frozenset[str]


def _meets(path: str) -> bool:
    name = path.rpartition(".")[2]
    of_torch = path.startswith("torch.distributed.") and name in OF_TORCH
    return of_torch or MEETS.fullmatch(name) is not None


def _wakes(path: str) -> bool:
    owner, _, name = path.rpartition(".")
    return name in WAKES or (name == "wait" and BARRIER in owner.lower())


class CallsAhead:
    """Answers for one file."""

    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        self._functions: dict[str, list[Function]] = {}
        self._imported: dict[str, str] = {}
        self._has_barriers = False
        for node in ast.walk(tree):
            if BARRIER.capitalize() in (getattr(node, "id", ""), getattr(node, "attr", "")):
                self._has_barriers = True
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                self._functions.setdefault(node.name, []).append(node)
            elif isinstance(node, ast.Import):
                for one in node.names:
                    known = one.name if one.asname else one.name.partition(".")[0]
                    self._imported[one.asname or known] = known
            elif isinstance(node, ast.ImportFrom):
                module = "" if node.level else node.module or ""
                for one in node.names:
                    self._imported[one.asname or one.name] = f"{module}.{one.name}"

    def collectives(self, line: int) -> Answer:
        """Tell whether the function around a line calls a collective from there on.

        A loop begins anew, so all of one that the line is in lies ahead. None where something is
        called of which nothing is known.
        """
        return self._ahead(line, _Asked(_meets, HARMLESS_METHODS))

    def waking(self, line: int) -> Answer:
        """Tell whether anything from a line on may end what another thread waits for in memory.

        That is a lock given back, also by leaving a ``with``, or news of any kind; None as above.
        """
        function = function_around(self._tree, line)
        if any(isinstance(one, (ast.With, ast.AsyncWith)) for one in around(function, line)):
            return True
        by_wait = self._has_barriers
        wakes = (lambda path: path.endswith(".wait") or _wakes(path)) if by_wait else _wakes
        return self._ahead(line, _Asked(wakes, HARMLESS_METHODS - WAKES))

    def _ahead(self, line: int, asked: _Asked) -> Answer:
        function = function_around(self._tree, line)
        loops = [one for one in around(function, line) if isinstance(one, LOOPS)]
        first = loops[0].lineno if loops else line
        ahead = (
            one for one in ast.walk(function) if (getattr(one, "end_lineno", None) or 0) >= first
        )
        return self._of_nodes(ahead, asked, set())

    def _of_nodes(self, nodes: Iterable[ast.AST], asked: _Asked, met: set[int]) -> Answer:
        calls = (one for one in nodes if isinstance(one, ast.Call))
        return _together(answer for one in calls for answer in self._of_call(one, asked, met))

    def _of_call(self, call: ast.Call, asked: _Asked, met: set[int]) -> Iterator[Answer]:
        """Answer for what is called, and for functions of this file that are handed on."""
        yield self._of_function(call.func, asked, met)
        for given in (*call.args, *(one.value for one in call.keywords)):
            name = given.id if isinstance(given, ast.Name) else getattr(given, "attr", "")
            if name in self._functions:
                yield self._of_own(name, asked, met)

    def _of_function(self, function: ast.expr, asked: _Asked, met: set[int]) -> Answer:
        names = list(_chain(function))
        root, name = names[0], names[-1]
        path = ".".join((self._imported.get(root, root), *names[1:]))
        if asked.is_it(path):
            return True
        if root in self._imported:
            package = path.partition(".")[0]
            harmless = package in sys.stdlib_module_names or package in HARMLESS_PACKAGES
            return False if harmless or package == "torch" else None
        if name in self._functions:
            return self._of_own(name, asked, met)
        known = hasattr(builtins, name) if len(names) == 1 else name in asked.harmless
        return False if known else None

    def _of_own(self, name: str, asked: _Asked, met: set[int]) -> Answer:
        """Answer for all functions of this file that have a name; a class makes what it can."""
        new = [one for one in self._functions[name] if id(one) not in met]
        met.update(map(id, new))
        if len(met) > MOST_FUNCTIONS:
            return None
        return _together(self._of_nodes(ast.walk(one), asked, met) for one in new)


def _together(answers: Iterable[Answer]) -> Answer:
    found = set(answers)
    return True if True in found else None if None in found else False


def _chain(node: ast.expr) -> Iterator[str]:
    """The names of ``a.b.c``; an empty first one where that is no name but a call or the like."""
    if isinstance(node, ast.Attribute):
        yield from _chain(node.value)
        yield node.attr
    else:
        yield node.id if isinstance(node, ast.Name) else ""
