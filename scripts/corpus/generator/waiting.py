"""How the other ranks wait for the one that does not come."""

from __future__ import annotations

from corpus.generator.filling import fill
from msgspec import Struct


class Wait(Struct, frozen=True, kw_only=True):
    """The source of ``$sync()``, which all ranks call behind a place.

    Attributes:
        source: Of the function; ``$source`` is the rank that the others wait for.
        one_source: Whether only one rank may be waited for.
        matches_nothing: Whether no collective of a mechanism can take it for its own.
    """

    source: str
    imports: tuple[str, ...] = ()
    one_source: bool = False
    matches_nothing: bool = False


WAITS = {
    "collective": (
        Wait(
            source="""
                def $sync():
                    total = torch.ones(2)
                    dist.all_reduce(total)
                    return total
            """,
            matches_nothing=True,
        ),
        Wait(
            source="""
                def $sync():
                    dist.barrier()
            """
        ),
        Wait(
            source="""
                def $sync():
                    gathered = [None] * dist.get_world_size()
                    dist.all_gather_object(gathered, {"rank": dist.get_rank()})
                    return gathered
            """
        ),
    ),
    "async": (
        Wait(
            source="""
                def $sync():
                    total = torch.ones(64)
                    work = dist.all_reduce(total, async_op=True)
                    work.wait()
                    return total
            """,
            matches_nothing=True,
        ),
        Wait(
            source="""
                def $sync():
                    total = torch.ones(64)
                    return dist.all_reduce(total, async_op=True).get_future().wait()
            """,
            matches_nothing=True,
        ),
    ),
    "polled": (
        Wait(
            source="""
                def $sync():
                    total = torch.ones(64)
                    work = dist.all_reduce(total, async_op=True)
                    while not work.is_completed():
                        time.sleep(0.02)
                    return total
            """,
            imports=("time",),
            matches_nothing=True,
        ),
    ),
    "p2p": (
        Wait(
            source="""
                def $sync():
                    token = torch.zeros(4)
                    if dist.get_rank() == $source:
                        for peer in range(dist.get_world_size()):
                            if peer != $source:
                                dist.send(token, dst=peer)
                    else:
                        dist.recv(token, src=$source)
            """,
            one_source=True,
        ),
        Wait(
            source="""
                def $sync():
                    token, rank, last = torch.zeros(4), dist.get_rank(), dist.get_world_size() - 1
                    if rank > 0:
                        dist.recv(token, src=rank - 1)
                    if rank < last:
                        dist.send(token, dst=rank + 1)
                    dist.barrier()
            """,
            one_source=True,
        ),
    ),
    "store": (
        Wait(
            source="""
                def $sync():
                    store = dist.distributed_c10d._get_default_store()
                    if dist.get_rank() == $source:
                        store.set("$word", "1")
                    store.wait(["$word"])
            """,
            one_source=True,
        ),
    ),
    "flag_file": (
        Wait(
            source="""
                def $sync():
                    path = os.path.abspath("$word.done")
                    if dist.get_rank() == $source:
                        open(path, "w").close()
                    while not os.path.exists(path):
                        time.sleep(0.3)
            """,
            imports=("os", "time"),
            one_source=True,
        ),
    ),
}


def source_of(wait: Wait, **names: object) -> str:
    """Write the function by which the others wait."""
    return fill(wait.source, **names)
