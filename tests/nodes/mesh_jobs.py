"""Jobs on a device mesh (data x pipeline x tensor) that stand as they really would.

Each rank runs the program of its stage: for each micro-batch it asks the stage before for a
message, reduces in its tensor group and sends to the next stage; then the same backwards. At the
end of a step it reduces in its data group. A few ranks are odd. All others go on until they wait
for one that does not come, and what they did by then is in their records.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import TYPE_CHECKING, Literal

from cases import IN_LOAD, MAIN, rank, torch, user
from msgspec import Struct
from msgspec.structs import replace

from lightning_hangcheck.model.flight import (
    CollectiveEntry,
    CollectiveRecord,
    FlightRecord,
    MessageCounts,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lightning_hangcheck.model.case import RankView
    from lightning_hangcheck.model.evidence import Frame

Oddity = Literal["stalled", "slow", "other", "skips"]
"""Stands in its own code; goes on there, slowly; calls another operation of its tensor group;
leaves one out."""
Place = tuple[int, int]
"""Stage and number in the tensor group."""
Seat = tuple[int, int, int]
"""Replica, stage and number in the tensor group."""
Odd = tuple[Oddity, int]
"""What a rank does, and at which of its operations in the tensor group."""
STEPS = 2
BATCHES = 2
OF_TENSORS = STEPS * BATCHES * 2
"""Operations of each rank in its tensor group."""
BEFORE, AFTER = "before", "after"
"""The stages beside one."""
IN_LAYERS = tuple((MAIN, user(f"layer_{one}", 92 + one)) for one in range(3))
STANDS: Mapping[str, tuple[Frame, ...]] = {
    "tensor": (MAIN, user("forward", 90), torch("all_reduce")),
    "data": (MAIN, user("reduce_gradients", 120), torch("all_reduce")),
    "receive": (MAIN, user("from_last_stage", 50), torch("recv")),
    "stalled": IN_LOAD,
}


class Mesh(Struct, frozen=True):
    """A mesh; the rank grows fastest with the place in the tensor group."""

    data: int
    stages: int
    tensor: int

    @property
    def world(self) -> int:
        """Ranks of the job."""
        return self.data * self.stages * self.tensor

    def seat(self, number: int) -> Seat:
        """Return where a rank is."""
        rest, place = divmod(number, self.tensor)
        return (*divmod(rest, self.stages), place)

    def number(self, replica: int, stage: int, place: int) -> int:
        """Return the rank at a place."""
        return (replica * self.stages + stage) * self.tensor + place


class Stuck(Struct, frozen=True):
    """How far a rank came: operations it has ended, and whether it has entered the next."""

    ended: int
    entered: bool


def program(mesh: Mesh, stage: int, odd: Odd | None) -> tuple[tuple[str, str], ...]:
    """Return what a rank does: kinds of operation, each with its name."""
    steps: list[tuple[str, str]] = []
    for _ in range(STEPS):
        for asked, told in ((BEFORE, AFTER), (AFTER, BEFORE)) * BATCHES:
            there = {BEFORE: stage > 0, AFTER: stage < mesh.stages - 1}
            steps += [("receive", asked)] if there[asked] else []
            steps += [("tensor", "all_reduce")]
            steps += [("send", told)] if there[told] else []
        steps += [("data", "all_reduce")]
    if odd is None:
        return tuple(steps)
    kind, when = odd
    at = [number for number, (dimension, _) in enumerate(steps) if dimension == "tensor"][when]
    instead = {kind: [(kind, "")], "other": [("tensor", "broadcast")], "skips": []}
    return (*steps[:at], *instead[kind], *steps[at + 1 :])


def played(mesh: Mesh, replicas: tuple[Mapping[Place, Odd], ...]) -> dict[Seat, Stuck]:
    """Let the ranks of these replicas run until none gets on."""
    here = Mesh(len(replicas), mesh.stages, mesh.tensor)
    seats = [here.seat(number) for number in range(here.world)]
    ways = {seat: program(here, seat[1], replicas[seat[0]].get(seat[1:])) for seat in seats}
    ended, entered = dict.fromkeys(seats, 0), dict.fromkeys(seats, 0)
    came: dict[tuple[object, ...], list[str]] = {}
    sent: dict[tuple[object, ...], int] = {}
    done: dict[tuple[Seat, str], int] = {}
    size = {"tensor": mesh.tensor, "data": len(replicas)}
    moved = True
    while moved:
        moved = False
        for seat in seats:
            while ended[seat] < len(ways[seat]):
                kind, name = ways[seat][ended[seat]]
                replica, stage, place = seat
                if kind in ("stalled", "slow"):
                    break
                if kind == "send":
                    to = stage + (1 if name == AFTER else -1)
                    sent[seat, to] = sent.get((seat, to), 0) + 1
                elif kind == "receive":
                    peer = (replica, stage + (1 if name == AFTER else -1), place)
                    if sent.get((peer, stage), 0) <= done.get((seat, kind + name), 0):
                        break
                    done[seat, kind + name] = done.get((seat, kind + name), 0) + 1
                else:
                    group = (replica, stage) if kind == "tensor" else (stage, place)
                    meeting = (kind, group, done.get((seat, kind), 0))
                    if entered[seat] == ended[seat]:
                        came.setdefault(meeting, []).append(name)
                        entered[seat] += 1
                        moved = True
                    if len(came[meeting]) < size[kind] or len(set(came[meeting])) > 1:
                        break
                done[seat, kind] = done.get((seat, kind), 0) + 1
                ended[seat] += 1
                entered[seat] = ended[seat]
                moved = True
    return {seat: Stuck(ended[seat], entered[seat] > ended[seat]) for seat in seats}


def ranks_of(mesh: Mesh, odd: Mapping[int, Odd]) -> Callable[[int], RankView]:
    """Return what gives the view of each rank of a job that stands still."""
    of_replica: dict[int, dict[Place, Odd]] = {}
    for number, what in odd.items():
        replica, *place = mesh.seat(number)
        of_replica.setdefault(replica, {})[place[0], place[1]] = what
    every = [tuple(sorted(of_replica.get(one, {}).items())) for one in range(mesh.data)]
    kinds = {one: at for at, one in enumerate(dict.fromkeys(every))}
    stuck = played(mesh, tuple(dict(one) for one in kinds))

    def view(number: int) -> RankView:
        replica, stage, place = mesh.seat(number)
        return seen(mesh, number, stuck[kinds[every[replica]], stage, place], odd.get(number))

    return view


def seen(mesh: Mesh, number: int, stuck: Stuck, odd: Odd | None) -> RankView:
    """Return the view of a rank that came so far."""
    _, stage, _ = mesh.seat(number)
    way = program(mesh, stage, odd)
    kind = "stalled" if stuck.ended == len(way) else way[stuck.ended][0]
    made, records = _made(way, stuck, kind)
    peers = {BEFORE: number - mesh.tensor, AFTER: number + mesh.tensor}
    sent, received = (_posted(way, stuck, kind, peers) for kind in ("send", "receive"))
    messages = MessageCounts(sent=sent, received=received)
    groups = tuple(
        replace(record, group=name, ranks=members)
        for record, (name, members) in zip(records, _groups(mesh, number), strict=True)
    )
    flight = FlightRecord(taken_ns=1, groups=groups, messages=messages)
    return replace(
        made, rank=number, local_rank=number % 8, host=f"node-{number // 8:05d}", flight=flight
    )


def _posted(
    way: tuple[tuple[str, str], ...], stuck: Stuck, kind: str, peers: Mapping[str, int]
) -> dict[int, int]:
    """Count messages by peer; one that is waited for is asked for."""
    asks = stuck.ended < len(way) and way[stuck.ended][0] == "receive"
    begun = way[: stuck.ended + asks]
    return dict(Counter(peers[name] for one, name in begun if one == kind))


@cache
def _made(
    way: tuple[tuple[str, str], ...], stuck: Stuck, kind: str
) -> tuple[RankView, tuple[CollectiveRecord, ...]]:
    """Ranks that differ in their numbers alone are made once."""
    begun = way[: stuck.ended + stuck.entered]
    records = []
    for dimension in ("tensor", "data"):
        entered = [(at, name) for at, (one, name) in enumerate(begun) if one == dimension]
        entries = tuple(
            CollectiveEntry(
                seq=seq,
                op=name,
                sizes=((64,),),
                dtypes=("Float",),
                retired=at < stuck.ended,
                created_ns=1 + at,
            )
            for seq, (at, name) in enumerate(entered, start=1)
        )
        records.append(
            CollectiveRecord(
                group="",
                description=f"mesh_{dimension}",
                last_enqueued=len(entries),
                last_completed=sum(one.retired for one in entries),
                entries=entries,
            )
        )
    stands = rank(0, *IN_LAYERS, cpu=1.0) if kind == "slow" else rank(0, STANDS[kind])
    return stands, tuple(records)


def _groups(mesh: Mesh, number: int) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Names and members of a rank's groups, numbered as torch's ``init_device_mesh`` does."""
    replica, stage, place = mesh.seat(number)
    first, apart = mesh.number(replica, stage, 0), mesh.number(1, 0, 0)
    tensor = tuple(range(first, first + mesh.tensor))
    replicas = tuple(range(mesh.number(0, stage, place), mesh.world, apart))
    names = 1 + replica * mesh.stages + stage, stage * mesh.tensor + place
    return (str(names[0]), tensor), (str(1 + mesh.data * mesh.stages + names[1]), replicas)
