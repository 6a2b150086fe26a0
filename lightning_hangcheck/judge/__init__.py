"""Explains: from the evidence of all nodes to a `Verdict`. Pure, and the same at any later time.

    nodes -> case (`joining`, ranks that stand alike: `alike`)
          -> what each thread, process and rank does and waits for (`threads`, `processes`,
             `activity`, `job`)
          -> what each rank has entered, where they part and who left (`operations`, `divergence`)
          -> who could end each wait, and so how long to wait (`patience`); who waits for whom, and
             where that ends (`graph`)
          -> what is wrong, by whom (`causes`), in words (`summary`, `wording`), what to do
             (`remedies`), as a `Verdict` (`verdict`)

Of a job that is gone, `postmortem_records` reads flight records and `postmortem_logs` logs.

What is known of other people's code and of causes (frames, remedies) is data: ``knowledge``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lightning_hangcheck.model.case import Case
    from lightning_hangcheck.model.verdict import Verdict


def judge(case: Case) -> Verdict:
    """Explain a case: who holds the job up, where, why, for how long, and what to do.

    Pure: the same case gives the same verdict, on any machine and at any later time.

    Args:
        case: Evidence of all ranks at one moment.
    """
    # imported here: it takes 20 MB and 0.1 s, which the watcher of a healthy job never pays
    from lightning_hangcheck.judge.verdict import verdict_of

    return verdict_of(case)
