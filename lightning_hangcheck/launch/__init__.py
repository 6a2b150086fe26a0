"""`hangcheck run`: the command as our child, unchanged, and the sidecar beside it."""
