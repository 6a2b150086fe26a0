"""Optional packages: whether they are there, where they lie, and that they keep quiet."""

from __future__ import annotations

import logging
from importlib.util import find_spec
from pathlib import Path

from lightning_hangcheck.errors import BadUsage


def folder_with(module: str, option: str, extra: str) -> str:
    """Find the folder of the path of modules in which an optional package lies.

    Args:
        module: Of the package, with its dots.
        option: That needs it.
        extra: Of ours that brings it.

    Raises:
        BadUsage: It is not installed.
    """
    try:
        spec = find_spec(module)
    except ModuleNotFoundError:  # what it is a part of is missing, too
        spec = None
    if spec is None or spec.origin is None:
        raise BadUsage(
            f"{option} needs the package {module}, which is not installed",
            f"pip install 'lightning-hangcheck[{extra}]'",
        )
    return str(Path(spec.origin).parents[module.count(".") + 1])


def hush(*names: str) -> None:
    """Keep what these packages log to themselves: they write addresses out, with their secrets."""
    for name in names:
        logger = logging.getLogger(name)
        logger.addHandler(logging.NullHandler())
        logger.propagate = False
