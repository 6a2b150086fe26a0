"""Where a process stands in its Python code, and the source around that place.

py-spy reads it from outside without pausing it (`python_stacks`, `local_values`; `unpaused` reads
again what came out torn). Only `native_calls` pauses it. `source` and `marker_loops` read the code
around a line, `path_text` what path it names. Where py-spy may not, the process writes
its stacks itself (`signalled_stacks`).
"""

__all__ = [
    "local_values",
    "marker_loops",
    "native_calls",
    "path_text",
    "py_spy",
    "python_stacks",
    "signalled_stacks",
    "source",
    "unpaused",
]
