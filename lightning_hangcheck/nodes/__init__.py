"""How the nodes of one job exchange what they see while it runs.

`message` is what a node sends, with one line for ranks in the same situation; `encoding` its only
format on the way; `meeting_place` where nodes leave messages for each other; `peers` which messages
have come from whom, and who judges.
"""
