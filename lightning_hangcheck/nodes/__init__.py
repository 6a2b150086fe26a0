"""The nodes of one job tell each other what they see, while it runs.

`digest` is what one node tells, `encoding` the only form in which it travels, `places` where nodes
leave it for each other, `exchange` what is left and taken there, `words` what is told there to all,
`heard` what is known of a node, `judging` who judges for all, `circle` all of this for one node,
`round_end` how a round ended, `clocks` how far their clocks are apart, `bounds` how much of what is
told is read. In jobs of thousands, `folding` tells ranks that stand alike as one.
"""

__all__ = [
    "bounds",
    "circle",
    "clocks",
    "digest",
    "encoding",
    "exchange",
    "folding",
    "heard",
    "judging",
    "places",
    "round_end",
    "words",
]
