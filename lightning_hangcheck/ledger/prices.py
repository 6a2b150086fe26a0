"""What an hour costs: one price for every rank, or one by the model of its GPU."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from msgspec import Struct

from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.ledger.spending import SECONDS_PER_HOUR

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Price(Struct, frozen=True):
    """What one rank costs for an hour.

    Attributes:
        model: Part of the name of the GPUs that it is for; empty for all others.
    """

    per_hour: float
    model: str = ""


class Prices(Struct, frozen=True):
    """All prices; none at all is fine, too."""

    prices: tuple[Price, ...] = ()

    def cost(self, gpus: Sequence[str], ranks: int, seconds: float) -> float | None:
        """Return what so many ranks cost for so long; None where no price is for their GPUs.

        Args:
            gpus: Models of the GPUs of their machine.
            ranks: Each pays for one GPU, or for one machine without any.
            seconds: Of each of them.
        """
        per_hour = self._per_hour(gpus)
        return None if per_hour is None else per_hour * ranks * seconds / SECONDS_PER_HOUR

    def _per_hour(self, gpus: Sequence[str]) -> float | None:
        named = " ".join(gpus).lower()
        for price in self.prices:
            if price.model and price.model.lower() in named:
                return price.per_hour
        return next((price.per_hour for price in self.prices if not price.model), None)


def read_prices(texts: Iterable[str]) -> Prices:
    """Read prices such as ``0.89/h`` and ``A100=1.89/h``; several may stand behind commas.

    Raises:
        BadUsage: One of them is no price.
    """
    single = (text.strip() for several in texts for text in several.split(","))
    return Prices(tuple(_read(text) for text in single if text))


def _read(text: str) -> Price:
    model, equals, amount = text.rpartition("=")
    try:
        per_hour = float(amount.strip().removesuffix("/h"))
    except ValueError:
        per_hour = math.nan
    if not 0 <= per_hour < math.inf or (equals and not model.strip()):
        raise BadUsage(
            f"--price {text} is no price of an hour",
            "write for example --price 0.89/h, or --price A100=1.89/h",
        )
    return Price(per_hour, model.strip())
