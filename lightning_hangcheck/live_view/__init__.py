"""`hangcheck watch`: a run in another terminal, while it goes on; passive.

`run_follower` makes one fact a rank of what is read; `view_text` draws lines that fit a terminal.
"""
