"""One file per source of evidence: each probe returns evidence, or a `Gap`, within its time budget.

No probe raises, and none waits on its target without a limit. Where a look can be taken without
stopping the target, it is.
"""

__all__ = ["flight_record", "gpu", "memory", "proc", "sample", "stacks", "waits"]
