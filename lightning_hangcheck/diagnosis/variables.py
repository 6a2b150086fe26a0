"""Local variables beside the line of the user's own code on which a rank stands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.diagnosis.place import users_place
from lightning_hangcheck.diagnosis.wording import short_place

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lightning_hangcheck.model.evidence import ProcessLook


def variables_of(look: ProcessLook) -> Iterator[str]:
    """Write the newest variables that were read of a process: one sentence, none if none were.

    Args:
        look: Its samples; they hold variables only where somebody asked for them.
    """
    samples = reversed(look.samples)
    values = next((one.local_values for one in samples if one.local_values), ())
    place = users_place([one.frame for one in values])
    for one in values:
        if one.frame == place:
            shown = ", ".join(f"{name} = {value}" for name, value in one.values.items())
            yield f"variables in {one.frame.function} ({short_place(one.frame)}): {shown}"
