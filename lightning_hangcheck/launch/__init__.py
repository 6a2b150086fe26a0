"""`hangcheck run`: the command as our child, unchanged (`job`), and the sidecar beside it (`run`).

`job` also says why a command cannot be started, for all that start one.
"""
