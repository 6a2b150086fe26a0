"""How the nodes of one job exchange what they see while it runs.

`message` is what a node sends, with one line for ranks in the same situation; `encoding` its only
format on the way; `meeting_place` where nodes leave messages for each other; `who_judges` exchanges
them, knows whom this node has heard, and decides which node judges for all.
"""
