#!/usr/bin/env python3
"""What it takes to tell, hear, join and judge many nodes of eight ranks each: simulated ranks.

Everything above the probes is the product's own code, and what is told is what nodes really send.
All ranks are silent and tell all they have: three samples of three threads, calls 33 deep, a page,
torch's record of forty operations; one in a hundred stands elsewhere. Each node's word is made and
packed, one after the other. The first node takes them all at a place in memory, asks for the
evidence of one rank of each class, takes the words of those that were asked once more, joins and
judges: in a process of its own, whose memory is therefore the first node's.

With ``--job`` the ranks are of a device mesh (data x 16 x 8), each in groups of its own, or all of
them wait for one thing. Making the words of 131,072 ranks takes about a minute.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from figures import Figure, tell

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "nodes"))

from cases import IN_ALL_REDUCE, IN_LOAD, MAIN, SITE, job, rank, user, with_threads
from flights import flying
from mesh_jobs import Mesh, Odd, ranks_of
from msgspec.structs import replace

from lightning_hangcheck.identity import NodePlace
from lightning_hangcheck.judge import judge
from lightning_hangcheck.model.beat import Beat, CheckpointMark
from lightning_hangcheck.model.codec import encode_for_file
from lightning_hangcheck.model.evidence import Frame, ThreadStack, WaitTarget
from lightning_hangcheck.nodes.encoding import pack
from lightning_hangcheck.nodes.message import Message, message_of
from lightning_hangcheck.nodes.who_judges import CALM_S, FIRST, Peers, key_of
from lightning_hangcheck.report.verdict_text import render
from lightning_hangcheck.watch.join_nodes import join_peers, wanted_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lightning_hangcheck.model.case import Case, RankView
    from lightning_hangcheck.model.evidence import TargetKind

    Made = Callable[[int], RankView]

RANKS_A_NODE = 8
ODD = 100
DEEP = tuple(Frame(f"call_{n}", f"{SITE}/package_{n % 7}/file_{n}.py", n) for n in range(30))
BESIDE = tuple(
    ThreadStack(tid=900 + n, name=f"thread-{n}", frames=(MAIN, user(f"serve_{n}", n)))
    for n in range(2)
)
OPERATIONS = tuple(f"all_reduce {size}" for size in range(1_000, 1_040))


class AtFirst(msgspec.Struct):
    """What the first node's process measured of itself; seconds of processor time."""

    heard_s: float
    asked: int
    joined_s: float
    judged_s: float
    memory_mb: float
    evidence_kb: float
    verdict_bytes: int
    lines: int
    told: str


class Memory:
    """A place where nodes meet, in memory; nothing is there at first."""

    where = "memory"

    def __init__(self) -> None:
        self.words: dict[str, bytes] = {}

    def post(self, key: str, value: bytes) -> None:
        """Nobody reads what the first node tells."""

    def look(self, key: str) -> bytes | None:
        """Return what a node told."""
        return self.words.get(key)

    def look_all(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return what nodes told."""
        return [self.words.get(key) for key in keys]

    def close(self) -> None:
        """Nothing is held open."""


def main() -> None:
    """Measure one size after the other."""
    options = _parse_options()
    if options.first_node is not None:
        made = JOBS[options.job](options.nodes[0] * RANKS_A_NODE)
        first = _first_node(options.first_node, options.nodes[0], made)
        print(msgspec.json.encode(first).decode())
        return
    figures: list[Figure] = []
    for nodes in options.nodes:
        figures += _measure(nodes, options.job)
    tell(figures, as_json=options.json)


def _measure(nnodes: int, kind: str) -> list[Figure]:
    made = JOBS[kind](nnodes * RANKS_A_NODE)
    what = f"{kind}, {nnodes * RANKS_A_NODE:,} ranks on {nnodes:,} nodes"
    started = time.process_time()
    told = [pack(_word(node, nnodes, made)) for node in range(nnodes)]
    made_s = (time.process_time() - started) / nnodes
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "told"
        path.write_bytes(msgspec.msgpack.encode(told))
        command = [sys.executable, __file__, "--first-node", str(path), "--nodes", str(nnodes)]
        done = subprocess.run([*command, "--job", kind], check=True, stdout=subprocess.PIPE)
    first = msgspec.json.decode(done.stdout, type=AtFirst)
    calm = len(pack(_word(FIRST, nnodes, made, silent_s=0.5))) / RANKS_A_NODE / CALM_S
    all_s = first.heard_s + first.joined_s + first.judged_s
    return [
        Figure(f"{what}: calm, a rank and second", calm, "bytes", "under 100"),
        Figure(f"{what}: a node makes its word", 1e3 * made_s, "ms"),
        Figure(f"{what}: a node's word", len(told[FIRST]), "bytes", "", "all silent"),
        Figure(f"{what}: all words", sum(map(len, told)) / 1e3, "kB"),
        Figure(f"{what}: ranks whose evidence is asked for", first.asked, "", "at most 256"),
        Figure(f"{what}: words with it", first.evidence_kb, "kB"),
        Figure(f"{what}: heard by the first node", first.heard_s, "s"),
        Figure(f"{what}: joined", first.joined_s, "s"),
        Figure(f"{what}: judged", first.judged_s, "s", "", first.told),
        Figure(f"{what}: heard, joined and judged", all_s, "s", "under 5"),
        Figure(f"{what}: memory of the first node", first.memory_mb, "MB", "under 300"),
        Figure(f"{what}: verdict.json", first.verdict_bytes / 1e3, "kB", "under 256"),
        Figure(f"{what}: lines on the terminal", first.lines, "", "at most 40"),
    ]


def _first_node(path: Path, nnodes: int, made: Made) -> AtFirst:
    words = msgspec.msgpack.decode(path.read_bytes(), type=list[bytes])
    own, place = _case(FIRST, nnodes, made), Memory()
    peers = Peers(NodePlace(number=FIRST, nnodes=nnodes), [place])
    peers.take_turn()  # what stands there before it has changed counts as nothing
    place.words = {key_of(node): word for node, word in enumerate(words)}
    del words
    started = time.process_time()
    peers.take_turn()
    wanted = wanted_of(peers.others.values(), own.run.world_size)
    heard_s = time.process_time() - started
    nodes = {rank // RANKS_A_NODE for rank in wanted}
    asked = {key_of(node): pack(_word(node, nnodes, made, wanted=wanted)) for node in nodes}
    place.words.update(asked)
    started = time.process_time()
    peers.take_turn()
    heard_s += time.process_time() - started
    started = time.process_time()
    case = join_peers(own, peers.others.values())
    joined_s = time.process_time() - started
    verdict = judge(case)
    judged_s = time.process_time() - started - joined_s
    return AtFirst(
        heard_s=heard_s,
        asked=len(wanted),
        joined_s=joined_s,
        judged_s=judged_s,
        memory_mb=_peak_mb(),
        evidence_kb=sum(map(len, asked.values())) / 1e3,
        verdict_bytes=len(encode_for_file(verdict)),
        lines=len(render(case, verdict, "run").splitlines()),
        told=f"{verdict.verdict}, {verdict.summary.partition(' (')[0]}",
    )


def _peak_mb() -> float:
    """Of this program alone: ``ru_maxrss`` begins with what the parent had when it started it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def _word(
    node: int,
    nnodes: int,
    made: Made,
    silent_s: float | None = None,
    wanted: Sequence[int] = (),
) -> Message:
    case = _case(node, nnodes, made)
    if silent_s is not None:
        views = tuple(replace(view, silent_for_s=silent_s) for view in case.ranks)
        case = replace(case, ranks=views)
    return message_of(case, node, time.monotonic_ns(), wanted=wanted)


def _case(node: int, nnodes: int, made: Made) -> Case:
    first, world = node * RANKS_A_NODE, nnodes * RANKS_A_NODE
    views = [made(number) for number in range(first, first + RANKS_A_NODE)]
    return job(*views, world_size=world, local_world_size=RANKS_A_NODE, nnodes=nnodes)


def _alike(world: int) -> Made:
    def made(number: int) -> RankView:
        odd, place = number % ODD == 1, number % RANKS_A_NODE
        if (place, odd, world) not in MADE:
            MADE[place, odd, world] = _made(place, odd=odd, world=world)
        return _named(MADE[place, odd, world], number)

    return made


def _mesh(world: int) -> Mesh:
    tensor, stages = min(8, world), min(16, max(1, world // 16))
    return Mesh(data=world // (tensor * stages), stages=stages, tensor=tensor)


def _stalled(world: int) -> Made:
    return ranks_of(_mesh(world), {world // 2 + 5: ("stalled", 3)})


def _odd_ones(world: int) -> Made:
    odd: dict[int, Odd] = dict.fromkeys(range(1, world, ODD), ("stalled", 3))
    return ranks_of(_mesh(world), odd)


def _diverged(world: int) -> Made:
    return ranks_of(_mesh(world), {world // 2 + 5: ("other", 3)})


def _slow_stage(world: int) -> Made:
    mesh = _mesh(world)
    slow = [number for number in range(world) if mesh.seat(number)[1] == mesh.stages // 2]
    return ranks_of(mesh, dict.fromkeys(slow, ("slow", 3)))


def _healthy(world: int) -> Made:
    view = ranks_of(_mesh(world), {})
    return lambda number: replace(view(number), silent_for_s=0.5, idle_for_s=0.5)


def _waiting_for(kind: TargetKind, call: str, name: str) -> Callable[[int], Made]:
    target = WaitTarget(call=call, kind=kind, name=name, shared_storage=kind == "lock")
    waits = rank(0, IN_LOAD, waits_for=(target,))
    return lambda _: lambda number: _named(waits, number)


def _named(view: RankView, number: int) -> RankView:
    host = f"node-{number // RANKS_A_NODE:05d}"
    return replace(view, rank=number, local_rank=number % RANKS_A_NODE, host=host)


JOBS: dict[str, Callable[[int], Made]] = {
    "alike": _alike,
    "mesh stalled": _stalled,
    "mesh odd": _odd_ones,
    "mesh diverged": _diverged,
    "mesh slow": _slow_stage,
    "mesh healthy": _healthy,
    "lock": _waiting_for("lock", "flock", "/data/x.lock"),
    "remote": _waiting_for("socket", "recvfrom", "10.0.0.9:443"),
}
"""By what the ranks do: gives, for a number of ranks, what gives the view of each."""
MADE: dict[tuple[int, bool, int], RankView] = {}
"""Ranks that differ in their numbers alone are made once: making them is not what is measured."""


def _made(place: int, *, odd: bool, world: int) -> RankView:
    mark = CheckpointMark(11, "Trainer ready", "2026-11-20T10:23:11.123Z")
    beat = Beat(
        pid=100 + place,
        world_size=world,
        beats=900,
        phase="training_step",
        step=812,
        checkpoint=mark,
    )
    view = rank(place, (*DEEP, *(IN_LOAD if odd else IN_ALL_REDUCE)), beat=beat)
    view = with_threads(view, *BESIDE, takes_lock=False)
    operations = OPERATIONS[:-1] if odd else OPERATIONS
    return flying(view, *operations, open_ops=0 if odd else 1)


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 16, 128, 1024, 16384])
    parser.add_argument("--job", choices=tuple(JOBS), default="alike")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--first-node", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
