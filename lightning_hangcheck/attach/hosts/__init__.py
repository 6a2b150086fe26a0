"""`hangcheck attach --hostfile`: the same look on every host of a job, joined into one verdict.

`hostfile` says which hosts, `answer` hears a program within bounds, `message` is what one host
sends, `visit` asks one host for it, `everywhere` asks all of them and judges.
"""
