"""Does a rank that advances keep its own pace? Pure: it is handed what is seen, and the time.

From the top: `job_pace` (all ranks of a node), `rank_pace` (what one has learnt, and when that no
longer holds), `stretches` (readings of a page as means over some steps and seconds). `glances`
counts who waits and who works while all are slow.
"""

__all__ = ["glances", "job_pace"]
