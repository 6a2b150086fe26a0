"""What a run tells other programs: messages to people, a command of the user's, metrics.

`asked_for` holds what was asked for and what there is to tell, `messenger` is the program that
tells it, `notifying`, `hang_command`, `telemetry` and `wandb_alert` are its ways, some by means of
optional `packages`; `metrics_text` is for Prometheus.
"""
