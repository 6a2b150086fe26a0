"""A wandb run that cannot leave the other ranks waiting, nor the job at its end.

`guard` is the door: rank 0 creates the run within a limit, all others learn how that went. `logger`
makes the WandbLoggers, `run_finish` bounds the end of a run, `service` ends wandb's own process.
"""
