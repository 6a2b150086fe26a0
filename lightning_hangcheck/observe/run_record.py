"""What run.json says of a rank and of what is installed: for a sidecar, attach and merge."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import TYPE_CHECKING

from lightning_hangcheck.look.proc import read_environment
from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.model.run import RankRecord
from lightning_hangcheck.text.published import DISTRIBUTIONS, published_environment
from lightning_hangcheck.text.redaction import redact_values

if TYPE_CHECKING:
    from lightning_hangcheck.observe.discovery import FoundRank


def rank_record(found: FoundRank, host: str) -> RankRecord:
    """Describe one rank as it was started, its environment redacted.

    Args:
        found: Whose process may be gone by now: then it has no environment any more.
        host: Where it runs.
    """
    environment = read_environment(found.pid)
    seen = {} if isinstance(environment, Gap) else environment
    return RankRecord(
        rank=found.rank,
        local_rank=found.local_rank,
        host=host,
        pid=found.pid,
        environment=redact_values(published_environment(seen)),
    )


def versions() -> dict[str, str]:
    """Return the versions of Python and of what is installed beside this package."""
    found = {"python": platform.python_version()}
    for name in DISTRIBUTIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
