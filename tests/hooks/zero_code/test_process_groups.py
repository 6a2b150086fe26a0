"""init_process_group: who a rank is going to be."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lightning_hangcheck.hooks.zero_code.groups import announced

ENVIRONMENT = {"RANK": "3", "WORLD_SIZE": "8", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, (3, 8, 29500)),
        ({"rank": 0, "world_size": 2}, (0, 2, 29500)),
        ({"rank": -1, "world_size": 2}, (3, 2, 29500)),
        ({"init_method": "env://"}, (3, 8, 29500)),
        ({"init_method": "env://?rank=1"}, (1, 8, 29500)),
        ({"init_method": "tcp://localhost:1?rank=1&world_size=4"}, (1, 4, 1)),
        ({"init_method": "file:///tmp/meeting", "rank": 1}, (1, None, None)),
        ({"store": "a store"}, (None, None, None)),
        ({"store": SimpleNamespace(port=7)}, (None, None, 7)),
    ],
    ids=str,
)
def test_what_is_announced_is_what_torch_will_take(
    arguments: dict[str, Any], expected: tuple[int | None, ...]
) -> None:
    assert announced(arguments, ENVIRONMENT) == expected
    assert announced({"rank": 1}, {}) == (1, None, None)
