"""Where a process stands in its Python code.

py-spy reads it from outside without pausing it (`python_stacks`, `local_values`; `unpaused` reads
again what came out torn). Only `native_calls` pauses it. Where py-spy may not, the process writes
its stacks itself (`signalled_stacks`). `training_thread` tells which thread of a rank trains.
"""

__all__ = [
    "local_values",
    "native_calls",
    "py_spy",
    "python_stacks",
    "signalled_stacks",
    "training_thread",
    "unpaused",
]
