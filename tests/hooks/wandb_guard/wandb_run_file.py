"""Reads what wandb's service has written of a run to this disk, as `wandb sync` would."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BLOCK, HEADER = 32_768, struct.Struct("<IHB")  # LevelDB's log format: checksum, length, kind
FILE_HEADER = 7
FULL, LAST = 1, 4


def logged(file: Path, key: str) -> list[str]:
    """The values of a metric, as JSON, in the order in which they were logged."""
    return [
        item.value_json
        for record in _records(file)
        if record.WhichOneof("record_type") == "history"
        for item in record.history.item
        if key in (item.key, *item.nested_key)
    ]


def exit_code(file: Path) -> int:
    """What wandb was told of the program's end; a run without that counts as crashed."""
    (record,) = (one for one in _records(file) if one.WhichOneof("record_type") == "exit")
    return int(record.exit.exit_code)


def _records(file: Path) -> Iterator[Any]:
    from wandb.proto.wandb_internal_pb2 import Record

    data, place, collected = file.read_bytes(), FILE_HEADER, b""
    while place + HEADER.size <= len(data):
        left = BLOCK - place % BLOCK
        if left < HEADER.size:
            place += left
            continue
        _, length, kind = HEADER.unpack_from(data, place)
        collected += data[place + HEADER.size : place + HEADER.size + length]
        place += HEADER.size + length
        if kind in (FULL, LAST):
            yield Record.FromString(collected)
            collected = b""
