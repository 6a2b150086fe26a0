"""The nodes of one job tell each other what they see, while it runs.

`word` is what one node tells, ranks that stand alike as one; `encoding` the only form in which it
travels; `meeting_place` and `store_place` where nodes leave it for each other; `exchange` what is
left and taken there; `peers` what is heard of whom, and who judges.
"""
