"""`hangcheck attach` and `hangcheck merge`: a verdict on a job that nobody here started.

`job_search` finds the job, `attach` looks at it, judges and saves; `recorded_session` finds what it
records itself, `watched_history` what a sidecar that watches it knows, `kept_output` whether what a
job prints is seen. `merging` joins run folders, `running_job` tells `hangcheck report` of a run
that goes on. `hosts` looks at a job on all its hosts.
"""
