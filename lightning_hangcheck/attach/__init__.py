"""`hangcheck attach` and `hangcheck merge`: verdicts on jobs that this process did not start.

`job_search` finds the job, `visit` looks at it. `recorded_session` reads what the job records, what
its sidecar knows, and what `hangcheck report` shows of a run in progress. `several_nodes` joins run
folders, and looks on all hosts.
"""
