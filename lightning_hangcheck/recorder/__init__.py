"""In the training process: says what the rank does, where a sidecar reads it. Never in the way."""

__all__ = [
    "announcer",
    "api",
    "background",
    "lifecycle",
    "page",
    "process",
    "sections",
    "stack_offer",
]
