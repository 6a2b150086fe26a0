"""`hangcheck run`: the command as our child, unchanged, and its sidecar."""
