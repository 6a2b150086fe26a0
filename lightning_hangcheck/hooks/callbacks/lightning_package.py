"""Which of the two packages that Lightning is published as does this process use?"""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

from lightning_hangcheck.errors import BadUsage

if TYPE_CHECKING:
    from types import ModuleType

NAMES = ("lightning.pytorch", "pytorch_lightning")


def lightning_packages() -> tuple[ModuleType, ...]:
    """Return the packages that are imported already, else import the first that is installed.

    Both can be there at once: a library that the script uses may import the other one.

    Raises:
        BadUsage: None is installed.
    """
    imported = tuple(filter(None, map(sys.modules.get, NAMES)))
    if imported:
        return imported
    for name in NAMES:
        if find_spec(name.partition(".")[0]) is not None:
            return (importlib.import_module(name),)
    raise BadUsage("Lightning is not installed", "pip install lightning")
