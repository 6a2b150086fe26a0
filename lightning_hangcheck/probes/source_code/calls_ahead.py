"""Whether what a thread runs from a line on calls collectives: a heartbeat's loop never does.

Read from the source alone, with the functions of the same file that it calls. Where anything is
called that may do as it likes, a function that was handed in or one of another file of the user's,
nothing is known.
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
from typing import TYPE_CHECKING, TypeAlias

from lightning_hangcheck.probes.source_code.marker_loops import function_around
from lightning_hangcheck.probes.source_code.syntax import LOOPS, around

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

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
MOST_FUNCTIONS = 64
"""Followed from one line: more is a program, and no loop of a helper's."""


class CallsAhead:
    """Answers for one file.

    Args:
        tree: The file, parsed.
    """

    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        self._functions: dict[str, list[Function]] = {}
        self._imported: dict[str, str] = {}
        for node in ast.walk(tree):
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

        A loop begins anew, so all of one that the line is in lies ahead.

        Args:
            line: On which a thread stands.

        Returns:
            None where something is called of which nothing is known.
        """
        function = function_around(self._tree, line)
        loops = [one for one in around(function, line) if isinstance(one, LOOPS)]
        first = loops[0].lineno if loops else line
        ahead = (one for one in ast.walk(function) if _last_line(one) >= first)
        return self._of_nodes(ahead, set())

    def _of_nodes(self, nodes: Iterable[ast.AST], met: set[int]) -> Answer:
        calls = (one for one in nodes if isinstance(one, ast.Call))
        return _together(answer for one in calls for answer in self._of_call(one, met))

    def _of_call(self, call: ast.Call, met: set[int]) -> Iterator[Answer]:
        """Answer for what is called, and for functions of this file that are handed on."""
        yield self._of_function(call.func, met)
        for given in (*call.args, *(one.value for one in call.keywords)):
            name = given.id if isinstance(given, ast.Name) else getattr(given, "attr", "")
            if name in self._functions:
                yield self._of_own(name, met)

    def _of_function(self, function: ast.expr, met: set[int]) -> Answer:
        names = list(_chain(function))
        root, name = names[0], names[-1]
        path = ".".join((self._imported.get(root, root), *names[1:]))
        called = path.rpartition(".")[2]
        if MEETS.fullmatch(called) or (
            path.startswith("torch.distributed.") and called in OF_TORCH
        ):
            return True
        if root in self._imported:
            return _of_imported(path.partition(".")[0])
        if name in self._functions:
            return self._of_own(name, met)
        known = hasattr(builtins, name) if len(names) == 1 else name in HARMLESS_METHODS
        return False if known else None

    def _of_own(self, name: str, met: set[int]) -> Answer:
        """Answer for all functions of this file that have a name; a class makes what it can."""
        new = [one for one in self._functions[name] if id(one) not in met]
        met.update(map(id, new))
        if len(met) > MOST_FUNCTIONS:
            return None
        return _together(self._of_nodes(ast.walk(one), met) for one in new)


def _of_imported(package: str) -> Answer:
    harmless = package in sys.stdlib_module_names or package in HARMLESS_PACKAGES
    return False if harmless or package == "torch" else None


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


def _last_line(node: ast.AST) -> int:
    return getattr(node, "end_lineno", None) or 0
