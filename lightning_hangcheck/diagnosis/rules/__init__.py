"""One rule a file, run by `engine`. A rule that lacks its evidence is skipped: none guesses."""

__all__ = ["contract", "engine", "patience"]
