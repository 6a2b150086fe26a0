"""`hangcheck run`: the command as our child, unchanged, and the sidecar beside it (`run`).

`job` also says why a command cannot be started, for all that start one.
"""

__all__ = ["job", "run"]
