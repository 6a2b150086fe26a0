"""TODO."""

__all__ = ["local_values", "native_calls", "py_spy", "python_stacks", "signalled_stacks", "source"]
