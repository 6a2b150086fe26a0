"""Options as training needs them: one that cannot be used is said, and its default taken."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from lightning_hangcheck import log
from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.settings import PREFIX, Settings, read_option

if TYPE_CHECKING:
    from collections.abc import Mapping


def usable_settings(environment: Mapping[str, str]) -> Settings:
    """Read the options that the environment sets; says each bad one once and never raises."""
    values: dict[str, object] = {}
    for option in msgspec.structs.fields(Settings):
        text = environment.get(PREFIX + option.name.upper())
        if not text:
            continue
        try:
            values[option.name] = read_option(option.name, text)
        except BadUsage as problem:
            log.once(f"option-{option.name}", f"{problem}; taking the default, {option.default}")
    return msgspec.convert(values, Settings)
