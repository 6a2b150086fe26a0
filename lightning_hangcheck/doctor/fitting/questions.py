"""What is asked about memory."""

from __future__ import annotations

from typing import Final

from lightning_hangcheck.doctor.fitting.model_memory import TIME_LIMIT_S, model_memory
from lightning_hangcheck.doctor.question import Question

GROUP: Final = "memory"
MEMORY = (
    Question(
        GROUP,
        "model's memory",
        "config.json of --backbone, what --extra keeps beside it, and the memory of this machine",
        "a model that is offloaded to main memory or disk takes seconds for a token, and looks "
        "like a hang",
        model_memory,
        limit_s=TIME_LIMIT_S,
    ),
)
