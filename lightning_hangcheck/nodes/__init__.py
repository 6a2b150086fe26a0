"""The nodes of one job tell each other what they see, while it runs.

`message` is what one node sends, ranks that stand alike as one; `encoding` the only form in which
it travels; `meeting_place` where nodes leave it for each other; `peers` what has come from whom,
and who judges.
"""
