"""Looks at processes from outside: kernel state, stacks, waits, GPUs.

`sample` reads everything, of one process or of a whole job; each other file reads one kind of
evidence. Only reading native calls pauses a process, and only one that is stuck anyway.
"""
