"""`hangcheck watch`: shows a running job in another terminal, passively.

`run_follower` reads the state of each rank; `view_text` renders it to fit a terminal.
"""
