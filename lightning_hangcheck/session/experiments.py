"""Runs of wandb that ranks have made, for `hangcheck run --wandb-alert` to find in the night.

<session>/experiments/<pid>.json     of the newest run of that process; no key is in it
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from lightning_hangcheck.errors import UnreadableRun
from lightning_hangcheck.files.atomic import make_private_folder, write_atomically
from lightning_hangcheck.files.decoding import decode
from lightning_hangcheck.files.owned_file import read_owned
from lightning_hangcheck.model.codec import encode

if TYPE_CHECKING:
    from pathlib import Path

    from lightning_hangcheck.session.session import Session

NO_RANK = 1 << 30
"""Behind all ranks."""


class Experiment(Struct, frozen=True, kw_only=True):
    """A run, as wandb names it.

    Attributes:
        run_id: What its address ends with.
        server: Where it is kept, such as ``https://api.wandb.ai``.
        offline: It is on this disk only, so nobody can be told through it.
        rank: That made it; None where that was not known yet.
    """

    entity: str
    project: str
    run_id: str
    server: str
    offline: bool = False
    rank: int | None = None


def note_experiment(session: Session, pid: int, experiment: Experiment) -> None:
    """Note that a process of the job has made a run.

    Raises:
        OSError: Shared memory cannot be used.
    """
    folder = _folder(session)
    make_private_folder(folder)
    write_atomically(folder / f"{pid}.json", encode(experiment))


def noted_experiment(session: Session) -> Experiment | None:
    """Return the run of the lowest rank that has one; None where none was made."""
    found = []
    try:
        files = sorted(_folder(session).glob("*.json"))
    except OSError:
        return None
    for file in files:
        try:
            found.append(decode(read_owned(file), Experiment, str(file)))
        except (OSError, UnreadableRun):
            continue
    return min(found, key=lambda one: NO_RANK if one.rank is None else one.rank, default=None)


def _folder(session: Session) -> Path:
    return session.path / "experiments"
