"""Reads a model's config.json."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from lightning_hangcheck.errors import BadUsage

if TYPE_CHECKING:
    from collections.abc import Mapping

NAME = "config.json"
LARGEST = 16 * 1024 * 1024
"""Bytes; config.json is a few kilobytes, so a weights file given by mistake is told at once."""


def find_config(model: str) -> Path | None:
    """Return the config.json that is meant, None where there is no such file or folder.

    Args:
        model: A folder that holds it, or the file itself.

    Raises:
        BadUsage: The folder is there, and has no config.json.
    """
    path = Path(model).expanduser()
    if not path.is_dir():
        return path if path.exists() else None
    if not (path / NAME).exists():
        raise BadUsage(
            f"the folder {model} has no {NAME}",
            "name the folder that from_pretrained gets, which holds config.json and the weights",
        )
    return path / NAME


def read_config(path: Path) -> Mapping[str, object]:
    """Read a model's configuration.

    Raises:
        BadUsage: It cannot be read, or is no JSON object.
    """
    try:
        if not path.is_file() or path.stat().st_size > LARGEST:
            raise BadUsage(f"{path} is no {NAME}", f"name a model's folder or its {NAME}")
        content = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise BadUsage(
            f"{path} cannot be read ({error.strerror})", f"name a {NAME} that you may read"
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadUsage(
            f"{path} is no JSON ({error})", f"fetch the model's {NAME} once more"
        ) from error
    if not isinstance(content, dict):
        raise BadUsage(f"{path} holds no JSON object", f"fetch the model's {NAME} once more")
    return content
