"""Where a run keeps its files: the run folder on disk and the session in shared memory."""

__all__ = ["journal_reader", "layout", "saved_evidence"]
