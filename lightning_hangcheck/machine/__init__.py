"""What the machine allows a process: control groups, and room for what we start in a rank."""

__all__ = ["control_groups", "own_thread", "process_stat", "room"]
