"""What a rank waits in below Python is among the facts about it, and no more than that."""

from __future__ import annotations

import pytest
from cases import IN_ALL_REDUCE, IN_LOAD, job, rank
from msgspec.structs import replace

from lightning_hangcheck.diagnosis import judge

WAITS = rank(0, IN_ALL_REDUCE)


@pytest.mark.parametrize(
    ("calls", "told"),
    [
        (("os_read", "read"), ["in native code: os_read > read"]),
        (
            ("at::native::item", "cudaStreamSynchronize", "ioctl"),
            [
                "waits for its GPU in cudaStreamSynchronize, in native code: "
                "at::native::item > cudaStreamSynchronize > ioctl"
            ],
        ),
        ((), []),
    ],
)
def test_native_calls_are_told_where_they_were_read(
    calls: tuple[str, ...], told: list[str]
) -> None:
    view = rank(1, IN_LOAD)
    (own,) = view.processes
    newest = replace(own.samples[-1], native_calls=calls)
    seen = replace(own, samples=(*own.samples[:-1], newest))
    verdict = judge(job(WAITS, replace(view, processes=(seen,))))
    assert (verdict.culprits, verdict.cause) == ((1,), "rank_stalled")
    assert [item.text for item in verdict.evidence if item.kind == "native"] == told
