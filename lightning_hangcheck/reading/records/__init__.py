"""What torch's record, its errors and the ranks' own notes tell of a rank.

Operations left open, messages, what a GPU has no room for.
"""

__all__ = [
    "device_waits",
    "gpu_out_of_memory",
    "messages",
    "open_operations",
    "started_operations",
]
