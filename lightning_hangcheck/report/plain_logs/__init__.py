"""What plain logs tell of a job of which nothing else was kept.

`lines` knows one line, `rank_ends` how each rank ended, `reading` the files, `picture` what the ends
mean together, `log_text` how that is said. From outside: `log_report`.
"""

__all__ = ["log_report"]
