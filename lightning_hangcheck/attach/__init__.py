"""`hangcheck attach` and `hangcheck merge`: a verdict on a job that nobody here started.

`job_search` finds the job, `visit` looks at it. `recorded_session` finds what the job records
itself, what a sidecar that watches it knows, and what `hangcheck report` shows of a run that goes
on. `several_nodes` joins run folders, and looks on all hosts.
"""
