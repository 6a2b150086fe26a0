"""The ranks of one node as its sidecar knows them: `roster` keeps them, round by round (`rounds`).

`watched_rank` is one of them, `progress` its signs of progress; `run_recorder` writes down who they
were, `run_ledger` what the run came to.
"""

__all__ = ["roster", "rounds", "run_ledger", "run_recorder", "watched_rank"]
