"""TODO."""

__all__ = [
    "housekeeping",
    "job_key",
    "joining",
    "journal_handover",
    "run_folders",
    "session",
    "stack_offers",
]
