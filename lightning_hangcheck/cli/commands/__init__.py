"""The commands, one a file, each thin: arguments in, a room's work, text and an exit code out.

Each is a function of its file's name, without the ``_command``.
"""

__all__ = [
    "attach_command",
    "doctor_command",
    "explain_command",
    "ledger_command",
    "merge_command",
    "plan_command",
    "rehearse_command",
    "report_command",
    "run_command",
    "smoke_command",
    "watch_command",
]
