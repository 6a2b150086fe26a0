"""Phases of a run that use a model differently: ``rollout:context=16384,batch=8``."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.planning.plan import Extra, Use
from lightning_hangcheck.planning.uses.beside import read_extra

LARGEST_NUMBER = 100_000_000
EXAMPLE = "write for example --phase 'rollout:context=16384,batch=8' --phase 'train:optimizer=12'"


class PlannedPhase(Struct, frozen=True, kw_only=True):
    """In what a phase differs from the rest of the run.

    Attributes:
        context: Tokens of prompt and answer; None for as many as elsewhere.
        batch: Sequences at a time; None for as many as elsewhere.
        extras: What is kept beside the model only then, or then in another size.
    """

    name: str
    context: int | None = None
    batch: int | None = None
    extras: tuple[Extra, ...] = ()

    def use_in(self, rest: Use) -> Use:
        """Return the use of the model in this phase.

        Args:
            rest: The use elsewhere.
        """
        own = {extra.name for extra in self.extras}
        return replace(
            rest,
            context=self.context or rest.context,
            batch=self.batch or rest.batch,
            extras=(*(one for one in rest.extras if one.name not in own), *self.extras),
        )


def read_phase(text: str) -> PlannedPhase:
    """Read one, as it stands behind ``--phase``.

    Raises:
        BadUsage: It has no name, or something in it has no size.
    """
    name, colon, rest = text.partition(":")
    settings = [one.strip() for one in rest.split(",") if one.strip()]
    if not (name.strip() and colon and settings):
        raise BadUsage(f"--phase {text} is no NAME:SETTING,SETTING", EXAMPLE)
    numbers = {"context": None, "batch": None} | {
        key: _number(text, value)
        for key, _, value in (one.partition("=") for one in settings)
        if key in ("context", "batch")
    }
    extras = tuple(
        read_extra(one) for one in settings if one.partition("=")[0] not in ("context", "batch")
    )
    return PlannedPhase(
        name=name.strip(), context=numbers["context"], batch=numbers["batch"], extras=extras
    )


def _number(text: str, value: str) -> int:
    if not value.isdecimal() or not 0 < int(value) <= LARGEST_NUMBER:
        raise BadUsage(
            f"--phase {text}: {value!r} is no number from 1 to {LARGEST_NUMBER}", EXAMPLE
        )
    return int(value)
