"""Switches on, in each rank, what torch offers and a variable cannot; no change to the script.

Python imports this before the script when its folder stands in PYTHONPATH. Two things: a shorter
timeout of the process group, which users hand to `init_process_group`, and torch's debug server,
which they start by a call of `torch.distributed.debug.start_debug_server()`.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

CONSTANTS = "torch.distributed.constants"
SERVER_NEEDS = ("jinja2", "tabulate", "aiohttp")
DUMP_INTERVAL_S, FETCH_TIMEOUT_S = 5.0, 5.0


class ShorterTimeout(importlib.abc.MetaPathFinder):
    """Sets the default timeout where torch defines it, before anybody copies it."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del target
        if name != CONSTANTS:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_set(module: ModuleType) -> None:
            execute(module)
            seconds = float(os.environ["HANGBENCH_TORCH_TIMEOUT"])
            module.__dict__["default_pg_timeout"] = timedelta(seconds=seconds)

        spec.loader.exec_module = execute_and_set
        return spec


def serve_when_torch_is_imported() -> None:
    while not _is_whole("torch") or not _is_whole("torch.distributed"):
        time.sleep(0.1)
    from torch.distributed.debug import start_debug_server

    start_debug_server(
        port=0,
        start_method="fork",  # spawn would run the script once more
        dump_dir=os.environ["HANGBENCH_TORCH_DUMPS"],
        dump_interval=DUMP_INTERVAL_S,
        enabled_dumps={"stacks"},
        fetch_timeout=FETCH_TIMEOUT_S,
    )


def _is_whole(name: str) -> bool:
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return spec is not None and not getattr(spec, "_initializing", False)


if "LOCAL_RANK" in os.environ and "HANGBENCH_TORCH_TIMEOUT" in os.environ:
    sys.meta_path.insert(0, ShorterTimeout())
    is_rank = os.environ.setdefault("HANGBENCH_TORCH_RANK", str(os.getpid())) == str(os.getpid())
    if is_rank and all(importlib.util.find_spec(module) for module in SERVER_NEEDS):
        threading.Thread(target=serve_when_torch_is_imported, daemon=True).start()
