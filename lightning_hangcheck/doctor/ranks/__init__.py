"""Do the ranks reach each other: they are really started, by the launcher of the run.

`trial_rank` is the program of each of them, which imports torch and nothing of ours; `trial` starts
it and listens, and `judging` says what came of it.
"""
