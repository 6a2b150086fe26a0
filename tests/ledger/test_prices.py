"""Prices of an hour."""

from __future__ import annotations

import pytest

from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.ledger.spending import read_prices


def test_the_price_of_a_model_comes_before_that_of_all_others() -> None:
    prices = read_prices(["0.89/h", "a100=1.89/h, H100=2.99"])
    assert prices.cost(["NVIDIA A100-SXM4-80GB"], 2, 1800) == pytest.approx(1.89)
    assert prices.cost(["NVIDIA H100"], 1, 3600) == pytest.approx(2.99)
    assert prices.cost([], 1, 3600) == pytest.approx(0.89)


def test_without_a_price_nothing_is_made_up() -> None:
    assert read_prices(["A100=1.89/h"]).cost(["NVIDIA L4"], 1, 3600) is None
    assert read_prices([""]).cost([], 1, 3600) is None


@pytest.mark.parametrize("text", ["cheap", "-1/h", "nan", "=0.5", "A100=", "0.5/d"])
def test_what_is_no_price_is_one_sentence(text: str) -> None:
    with pytest.raises(BadUsage, match="is not a price per hour; write for example"):
        read_prices([text])
