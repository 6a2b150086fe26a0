"""One file per source of evidence: each probe returns evidence, or a `Gap`, within its time budget.

No probe raises, and none waits on its target without a limit. Where a look can be taken without
stopping the target, it is. `sample` takes a whole look at one process or at all: the kernel's view
(`kernel`, over `proc` and `waits`), Python's (`stacks`, `source_code`) and the driver's (`gpu`).
`slurm_tasks` asks SLURM which processes are a job's.
"""

__all__ = [
    "bounded_child",
    "collective_numbers",
    "flight_record",
    "gpu",
    "memory",
    "proc",
    "sample",
    "slurm_tasks",
    "source_code",
    "stacks",
    "waits",
]
