"""The command `hangcheck`: one file a command, each calling what a library user would call."""
