"""Causes where a process cannot go on, or is no more.

`processes` are ranks that died, were stopped or have no memory left, `lost_child` a process that a
rank had started, `crash` how a job ended that is over.
"""

__all__ = ["crash", "lost_child", "processes"]
