"""The style, as rich names it, in which a verdict's kind is shown; nothing is said by it alone."""

KIND_STYLES = {
    "HANG": "bold red",
    "DEAD": "bold red",
    "CRASHED": "bold red",
    "SUSPECT": "bold yellow",
    "SLOW": "bold yellow",
    "RECOVERED": "bold green",
    "HEALTHY": "bold green",
    "FINISHED": "bold green",
}
