"""A look at one process from outside: its place in the kernel, its stacks, what it waits for, GPUs.

`sample` takes it all, of one process or of a whole job; each file beside it has one kind of
evidence. Nothing here pauses a process but the native calls of one that is stuck anyway.
"""
