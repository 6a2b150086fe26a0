"""The ranks of one node as its sidecar knows them: `roster` keeps them, round by round (`rounds`).

`watched_rank` is one of them, `progress` its signs of progress; `run_recorder` writes down who they
were, `run_ledger` what the run came to, `start_states` compares what they say at their start.
"""

__all__ = ["roster", "rounds", "run_ledger", "run_recorder", "start_states", "watched_rank"]
