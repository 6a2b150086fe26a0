"""What the sidecar tells, to whom, and when.

From the top: `slow_telling` (who lost its pace), `metrics_keeper` and `note_keeper` (files that
others read), `publishing` (console and run folder), `alarm` (what is worth telling), `reminders`
(that it still stands), `alerting` (people elsewhere). `newest_only` leaves out what is old news.
"""

__all__ = [
    "alarm",
    "alerting",
    "metrics_keeper",
    "note_keeper",
    "publishing",
    "reminders",
    "slow_telling",
]
