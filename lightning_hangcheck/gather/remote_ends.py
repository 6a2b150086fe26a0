"""Connections that lead from one node to another: which process has the other end. Pure.

Each node tells both ends of its processes' connections. What is the one's own end is the other's
remote one, so no address has to be looked up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck.model.evidence import Connection, Holder

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lightning_hangcheck.model.case import RankView
    from lightning_hangcheck.model.evidence import ProcessLook, ProcessState, Sample, WaitTarget

    Process = tuple[str, int]
    Ends = Mapping[Connection, Sequence[Process]]


def with_remote_ends(views: Sequence[RankView]) -> list[RankView]:
    """Name who could end waits at connections to other nodes.

    Args:
        views: Of the ranks of all nodes.
    """
    ends: dict[Connection, list[Process]] = {}
    for view in views:
        for look in view.processes:
            for one in _connections(look):
                ends.setdefault(Connection(one.remote, one.own), []).append((view.host, look.pid))
    return [_with_ends(view, ends) for view in views] if ends else list(views)


def _connections(look: ProcessLook) -> Sequence[Connection]:
    """Of the newest sample with the kernel's view."""
    kernels = (sample.kernel for sample in reversed(look.samples))
    newest = next((kernel for kernel in kernels if kernel is not None), None)
    return newest.connections if newest is not None else ()


def _with_ends(view: RankView, ends: Ends) -> RankView:
    looks = tuple(
        replace(look, samples=tuple(_of_sample(one, view.host, ends) for one in look.samples))
        for look in view.processes
    )
    return replace(view, processes=looks)


def _of_sample(sample: Sample, host: str, ends: Ends) -> Sample:
    if sample.kernel is None or not _waits_afar(sample.kernel):
        return sample
    threads = tuple(
        replace(one, waits_for=tuple(_of_target(target, host, ends) for target in one.waits_for))
        for one in sample.kernel.threads
    )
    return replace(sample, kernel=replace(sample.kernel, threads=threads))


def _waits_afar(kernel: ProcessState) -> bool:
    return any(target.own_end for thread in kernel.threads for target in thread.waits_for)


def _of_target(target: WaitTarget, host: str, ends: Ends) -> WaitTarget:
    there = ends.get(Connection(target.own_end, target.name), ()) if target.own_end else ()
    if not there or target.holders:
        return target
    holders = tuple(Holder(pid=pid, host="" if on == host else on) for on, pid in there)
    return replace(target, holders=holders)
