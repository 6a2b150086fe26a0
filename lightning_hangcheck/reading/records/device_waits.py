"""Does a rank that burns a core wait for its GPU, and the GPU for the other ranks? Pure.

By default CUDA waits by spinning (cudaDeviceScheduleSpin where cores are free), so a rank that
asks its GPU for a number takes all of a core at one line: ``.item()``, ``.cpu()``,
``torch.cuda.synchronize()``, or any launch once the queue of launches is full. That line comes long
after the collective that does not end: it tells where the rank stands, not where its way parted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.reading.activity.livelock import NEWEST, in_one_call
from lightning_hangcheck.reading.records.open_operations import open_operation
from lightning_hangcheck.reading.waits.torch_waits import FOR_RANKS, Wait, find_wait

if TYPE_CHECKING:
    from lightning_hangcheck.model.case import RankView
    from lightning_hangcheck.model.evidence import Frame, Sample


def device_wait(view: RankView) -> Wait | None:
    """Tell for which operation a rank's device keeps a rank that is busy.

    Returns:
        None where none that it put on its device is open, or where it is not seen to wait for that.
    """
    found, line = open_operation(view), at_device(view)
    if found is None or not found[0].on_device or line is None:
        return None
    return Wait("device", found[1].op, line)


def at_device(view: RankView) -> Frame | None:
    """Return the line at which a rank that is busy may wait for its device.

    It is at that line in all samples, in a C call that gave up the interpreter lock, and has a
    group whose operations run on its device. No thread beside it waits for other ranks: then what
    is open may be the other thread's.

    Returns:
        None where any of this does not hold, or does not show.
    """
    groups = view.flight.groups if view.flight is not None else ()
    own = view.own_process
    if own is None or not any(group.on_device for group in groups):
        return None
    main = in_one_call(own)
    if main is None or not main.frames or any(_beside_waits(one) for one in own.samples[-NEWEST:]):
        return None
    return main.frames[-1]


def _beside_waits(sample: Sample) -> bool:
    helpers = sample.stack.threads[1:] if sample.stack is not None else ()
    waits = (find_wait(thread.frames) for thread in helpers)
    return any(wait is not None and wait.kind in FOR_RANKS for wait in waits)
