"""The rules, a file for each family of causes; `RULES` are all of them, the most specific first.

``gone.find_crash`` is asked apart: only when the job is over.
"""

from lightning_hangcheck.judge.causes import collectives, gone, outside, own_code, slow
from lightning_hangcheck.judge.rule import RULES as REGISTERED

__all__ = ["RULES", "collectives", "gone", "outside", "own_code", "slow"]

RULES = tuple(sorted(REGISTERED, key=lambda rule: rule.order))
