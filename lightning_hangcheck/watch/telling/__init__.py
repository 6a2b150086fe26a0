"""What the sidecar tells, to whom, and when.

From the top: `slow_telling` (who lost its pace), `metrics_keeper` and `note_keeper` (files that
others read), `publishing` (console and run folder), `alarm` (what is worth telling), `reminders`
(that it still stands), `hang_telling` (that a hang is proven, to who may end the job for it),
`alerting` (people elsewhere). `newest_only` leaves out what is old news.
"""

__all__ = [
    "alarm",
    "alerting",
    "hang_telling",
    "metrics_keeper",
    "note_keeper",
    "publishing",
    "reminders",
    "slow_telling",
]
