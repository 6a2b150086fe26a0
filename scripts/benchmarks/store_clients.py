#!/usr/bin/env python3
"""How one store of torch's bears the sidecars of many nodes: real connections, made-up digests.

A process serves a TCPStore, as torchrun's agent does on the first node. Others hold one connection
a node, and do for each what its sidecar does once a second: leave its own digest, read what the
first node says, and read what one node below it left (each node is read by one above it). Each node
has a moment of its own within the second. Latency is that of leaving and reading together.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
from figures import Figure, tell

HOST = "127.0.0.1"
CLIENT_PROCESSES = 4
THREADS = 8
PREFIX = "lightning-hangcheck/nodes"
EVERY_S = 1.0
MILLISECONDS = 1e3
LATE_S = 0.5
"""A node that begins so long after its moment was held up by others of its thread."""


def main() -> None:
    """Measure one number of nodes after the other."""
    options = _parse_options()
    if options.serve:
        _serve()
    elif options.connect:
        _connect(options)
    else:
        figures = [figure for nodes in options.nodes for figure in _measure(nodes, options)]
        tell(figures, as_json=options.json)


def _measure(nodes: int, options: argparse.Namespace) -> list[Figure]:
    server = _start("--serve")
    try:
        port = _line(server)
        share, more = divmod(nodes, CLIENT_PROCESSES)
        counts = [share + (number < more) for number in range(CLIENT_PROCESSES)]
        firsts = [sum(counts[:number]) for number in range(CLIENT_PROCESSES)]
        rest = ["--bytes", options.bytes, "--seconds", options.seconds, "--of", nodes]
        clients = [
            _start("--connect", port, "--first", first, "--count", count, *rest)
            for first, count in zip(firsts, counts, strict=True)
            if count
        ]
        connected_s = max(float(_line(client)) for client in clients)
        used = psutil.Process(server.pid)
        before = used.cpu_times()
        began = time.monotonic()
        for client in clients:
            _go(client)
        done = [json.loads(_line(client)) for client in clients]
        elapsed_s = time.monotonic() - began
        after = used.cpu_times()
        memory = used.memory_info().rss
        for client in clients:
            client.wait(30)
    finally:
        server.kill()
        server.wait(30)
    cpu_s = after.user + after.system - before.user - before.system
    seconds = [one for part in done for one in part["seconds"]]
    late = sum(part["late"] for part in done)
    cuts = statistics.quantiles(seconds, n=100)
    what = f"{nodes:,} nodes"
    note = f"{len(seconds):,} times, {late} of them late; load {os.getloadavg()[0]:.1f}"
    return [
        Figure(f"{what}: all connected", connected_s, "s"),
        Figure(f"{what}: leave and read, median", cuts[49] * MILLISECONDS, "ms", "", note),
        Figure(f"{what}: leave and read, p99", cuts[98] * MILLISECONDS, "ms"),
        Figure(f"{what}: the store's process", 100 * cpu_s / elapsed_s, "% of a core"),
        Figure(f"{what}: its memory, torch included", memory / 1e6, "MB"),
    ]


def _serve() -> None:
    from torch.distributed import TCPStore

    store = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    print(store.port, flush=True)
    sys.stdin.read()


def _connect(options: argparse.Namespace) -> None:
    """Hold the connections of some nodes, in a few threads, and say how long each turn took."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 65_536)), hard))
    import torch.distributed  # noqa: F401 - its import is no part of a connection

    from lightning_hangcheck.hooks.places import StorePlace

    began = time.monotonic()
    numbers = range(options.first, options.first + options.count)
    with ThreadPoolExecutor(THREADS) as pool:  # torch asks for names of addresses, which may wait
        connected = pool.map(
            lambda _: StorePlace.of_agent(HOST, options.connect, PREFIX, timeout=60.0), numbers
        )
        places = dict(zip(numbers, connected, strict=True))
    print(time.monotonic() - began, flush=True)
    sys.stdin.readline()
    start = time.monotonic()
    turns = [_Turns(options, start) for _ in range(THREADS)]
    threads = [
        threading.Thread(target=one.run, args=([*places.items()][number::THREADS],))
        for number, one in enumerate(turns)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = [one for turn in turns for one in turn.seconds]
    print(json.dumps({"seconds": seconds, "late": sum(turn.late for turn in turns)}), flush=True)
    os._exit(0)  # thousands of connections need not be closed one by one


class _Turns:
    """The nodes of one thread, one after the other, each once a second."""

    def __init__(self, options: argparse.Namespace, start: float) -> None:
        self._nodes, self._bytes = options.of, options.bytes
        self._start, self._rounds = start, options.seconds
        self.seconds: list[float] = []
        self.late = 0

    def run(self, places: list[tuple[int, object]]) -> None:
        for turn in range(self._rounds):
            for number, place in places:
                due = self._start + EVERY_S * (turn + number / self._nodes)
                now = time.monotonic()
                time.sleep(max(0.0, due - now))
                self.late += now - due > LATE_S
                began = time.monotonic()
                place.post(f"node-{number}", os.urandom(self._bytes))
                place.look("node-0")
                self.seconds.append(time.monotonic() - began)
                place.look(f"node-{(number * 32 + 1) % self._nodes}")


def _start(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, __file__, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
    )


def _go(process: subprocess.Popen[str]) -> None:
    if process.stdin is not None:
        process.stdin.write("\n")
        process.stdin.flush()


def _line(process: subprocess.Popen[str]) -> str:
    line = process.stdout.readline() if process.stdout is not None else ""
    if not line:
        raise SystemExit(f"{process.args!r} ended without an answer")
    return line.strip()


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[100, 300, 1000])
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--bytes", type=int, default=1_400, help="of a digest")
    parser.add_argument("--json", action="store_true")
    for hidden in ("--connect", "--first", "--count", "--of"):
        parser.add_argument(hidden, type=int, help=argparse.SUPPRESS)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
