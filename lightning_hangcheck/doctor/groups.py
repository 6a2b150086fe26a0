"""The questions of all groups, in the order in which they are shown."""

from __future__ import annotations

from lightning_hangcheck.doctor.fitting.questions import MEMORY
from lightning_hangcheck.doctor.launching.questions import LAUNCH
from lightning_hangcheck.doctor.needed.questions import DATA
from lightning_hangcheck.doctor.ranks.questions import RANKS
from lightning_hangcheck.doctor.seeing.questions import SEEING
from lightning_hangcheck.doctor.storing.questions import STORAGE
from lightning_hangcheck.doctor.surroundings.questions import ENVIRONMENT

QUESTIONS = (*SEEING, *LAUNCH, *RANKS, *ENVIRONMENT, *STORAGE, *DATA, *MEMORY)
