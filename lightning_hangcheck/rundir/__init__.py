"""Where a run keeps its files: the run folder on disk and the session in shared memory."""
