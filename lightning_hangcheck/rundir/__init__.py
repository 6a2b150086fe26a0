"""The run folder of the contract: where each file lies, and how what it keeps is read again."""

__all__ = ["journal_reader", "layout", "rank_journals", "saved_evidence"]
