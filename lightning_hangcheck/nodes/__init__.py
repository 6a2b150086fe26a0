"""The nodes of one job tell each other what they see, while it runs.

`digest` is what one node tells, `encoding` the only form in which it travels, `meeting_place` where
nodes leave it for each other, `sealed_place` such a place among strangers, `exchange` what is left
and taken there, `heard` what is known of a node from it, `judging` who judges for all, `circle` all
of this for one node, `round_end` how a round ended, `clocks` how far their clocks are apart. In
jobs of thousands, `folding` tells ranks that stand alike as one.
"""

__all__ = [
    "circle",
    "clocks",
    "digest",
    "encoding",
    "exchange",
    "folding",
    "heard",
    "judging",
    "meeting_place",
    "round_end",
    "sealed_place",
    "store_place",
]
