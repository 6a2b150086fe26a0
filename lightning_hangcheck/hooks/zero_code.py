"""Records scripts that never heard of this package, when `hangcheck run` starts them.

Python imports ``sitecustomize`` from there before the script, in every process; the file decides
whether it is in a rank, and only then comes here.
"""

from __future__ import annotations

import os
from pathlib import Path

from lightning_hangcheck.hooks.worker_server import offer_flight_record
from lightning_hangcheck.recorder.recording import current
from lightning_hangcheck.recorder.stack_offer import offer_stacks

INJECT_FOLDER = Path(__file__).parent / "inject"


def start() -> None:
    """Record this process from its first line on: its page, pulse, records and last words."""
    recorder = current()
    offer_flight_record(recorder)
    offer_stacks(recorder.session)


def injected(python_path: str | None) -> str:
    """Return the PYTHONPATH with our folder in front.

    Args:
        python_path: As it is, None where it is not set.
    """
    return os.pathsep.join(filter(None, (str(INJECT_FOLDER), python_path)))
