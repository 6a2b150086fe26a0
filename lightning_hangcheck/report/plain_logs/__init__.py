"""What plain logs tell of a job of which nothing else was kept.

`lines` knows one line, `rank_ends` how each rank ended, `reading` the files, `picture` what the
ends mean together, and `log_report`, the front door, how that is said.
"""

__all__ = ["log_report"]
