"""The command `hangcheck`: each in a file of its name, or in that of a kindred command."""
