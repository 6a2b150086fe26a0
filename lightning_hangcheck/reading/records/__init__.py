"""What torch's record and the ranks' own notes tell of a rank: operations left open, messages."""

__all__ = ["device_waits", "messages", "open_operations", "started_operations"]
