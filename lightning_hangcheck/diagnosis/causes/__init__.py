"""TODO."""

__all__ = [
    "collectives",
    "crash",
    "dataloader_worker",
    "fallback",
    "files",
    "network",
    "own_code",
    "processes",
    "rendezvous",
    "threads",
]
