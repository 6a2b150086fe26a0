"""All hosts asked at once, their cases joined, judged and kept as one run."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from lightning_hangcheck.attach.hosts.message import HostMessage
from lightning_hangcheck.attach.hosts.visit import visit
from lightning_hangcheck.errors import NoJobFound
from lightning_hangcheck.judge import judge
from lightning_hangcheck.judge.joining import NodeCase, merge_cases
from lightning_hangcheck.model.case import Case
from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.model.verdict import Verdict
from lightning_hangcheck.observe.saving import save_run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.attach.hosts.visit import Way
    from lightning_hangcheck.rundir.layout import RunFolder

AT_ONCE = 32
"""Hosts: a login node shall not feel it."""
MOST_NAMED = 3


class Joined(Struct, frozen=True, kw_only=True):
    """What all hosts together show.

    Attributes:
        silent: One for each host that told nothing; they are gaps of the case, too.
        said: By host, what its own `hangcheck attach` had to say beside its evidence.
        hang_stands: A sidecar on one of them has told a hang, and it stands.
    """

    case: Case
    verdict: Verdict
    silent: tuple[Gap, ...]
    said: tuple[tuple[str, str], ...]
    hang_stands: bool


def attach_everywhere(
    hosts: Sequence[str], way: Way, folder: RunFolder, at_once: int = AT_ONCE
) -> Joined:
    """Look at a job on all of its hosts, and give one verdict.

    Args:
        hosts: Each once.
        way: How they are asked.
        folder: Where to keep the verdict and its evidence.
        at_once: How many are asked at a time.

    Raises:
        NoJobFound: No host told of a job.
        UsedRunFolder: The folder holds another run.
    """
    answers = dict(zip(hosts, _ask_all(hosts, way, at_once), strict=True))
    told = {host: one for host, one in answers.items() if isinstance(one, HostMessage)}
    silent = tuple(one for one in answers.values() if isinstance(one, Gap))
    if not told:
        raise _nothing(silent)
    merged = merge_cases([NodeCase(host, one.case) for host, one in told.items()], folder.run_id)
    case = replace(merged, gaps=(*merged.gaps, *silent))
    verdict = judge(case)
    save_run(case, verdict, tuple(rank for one in told.values() for rank in one.ranks), folder)
    return Joined(
        case=case,
        verdict=verdict,
        silent=silent,
        said=tuple((host, sentence) for host, one in told.items() for sentence in one.said),
        hang_stands=any(one.hang_stands for one in told.values()),
    )


def _ask_all(hosts: Sequence[str], way: Way, at_once: int) -> list[HostMessage | Gap]:
    given_up = threading.Event()
    with ThreadPoolExecutor(min(at_once, len(hosts))) as pool:
        try:
            return list(pool.map(lambda host: visit(host, way, given_up), hosts))
        finally:
            # after Ctrl-C nobody waits for the rest; else all have answered
            given_up.set()


def _nothing(silent: Sequence[Gap]) -> NoJobFound:
    named = [f"{one.what}: {one.why}" for one in silent[:MOST_NAMED]]
    more = len(silent) - len(named)
    rest = [f"and {more} more"] if more else []
    return NoJobFound(
        f"none of {len(silent)} hosts told of a job ({'; '.join([*named, *rest])})",
        silent[0].remedy or "name the hosts on which its ranks run",
    )
