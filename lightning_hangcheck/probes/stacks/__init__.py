"""Where a process stands in its Python code, and the source around that place.

py-spy reads it from outside (`python_stacks`, and more closely `native_calls`, `local_values`);
where it may not, the process writes its stacks itself (`signalled_stacks`).
"""

__all__ = ["local_values", "native_calls", "py_spy", "python_stacks", "signalled_stacks", "source"]
