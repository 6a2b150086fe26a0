"""What plain logs tell of a job of which nothing else was kept.

`lines` knows one line; `log_report`, the front door, reads the files, finds where each rank was
last, and says what that means together.
"""
