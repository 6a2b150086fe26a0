"""`hangcheck watch`: a run in another terminal, while it goes on; passive.

`run_follower` reads the run again and again through the readers of `hangcheck report`; `rank_now`
makes one fact a rank of what was read, and `view_text` writes and draws lines that fit a terminal.
"""
