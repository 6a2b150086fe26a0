"""In what and where do ranks wait, those that are told as one asked once? Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lightning_hangcheck.diagnosis.job import JobReading
    from lightning_hangcheck.diagnosis.rank_reading import RankReading
    from lightning_hangcheck.model.evidence import Frame
    from lightning_hangcheck.reading.waits.torch_waits import Wait


def waits_and_places(
    job: JobReading, ranks: Iterable[int]
) -> Iterator[tuple[Wait | None, Frame | None, list[int]]]:
    """Return in what and where ranks wait, each pair with its ranks; those told as one are one."""
    together: dict[tuple[int, int], tuple[RankReading, list[int]]] = {}
    for rank in ranks:
        reading = job.ranks[rank]
        key = id(reading.rank_activity), id(reading.place)
        together.setdefault(key, (reading, []))[1].append(rank)
    for reading, alike in together.values():
        yield reading.wait, reading.place, alike
