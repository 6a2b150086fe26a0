"""Facts to text: each renderer takes a verdict and gives a string; none reads, asks or prints."""

__all__ = [
    "causes",
    "junit_xml",
    "ledger",
    "page",
    "paragraphs",
    "plain_logs",
    "plan_text",
    "rounds",
    "running_ranks",
    "saved_run",
    "serving",
    "start_report",
    "stragglers",
    "traces",
    "unjudged",
    "verdict_text",
]
