"""`hangcheck watch`: a run in another terminal, while it goes on; passive.

`run_follower` reads the run again and again through the readers of `hangcheck report`; `rank_now`
makes one fact a rank of what was read, `rank_table` rows of these, `view_text` the lines that fit a
terminal. `terminal_view` draws them, or prints a block a change where there is no terminal.
"""
