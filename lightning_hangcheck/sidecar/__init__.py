"""One ordinary process a node, outside the ranks: decides that something stalled, when to look.

`watching` is the loop; `progress`, `schedule` and `alarm` are its pure decisions, tested without
processes; `running` is what `hangcheck run` calls.
"""
