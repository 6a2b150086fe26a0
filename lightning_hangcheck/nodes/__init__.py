"""The nodes of one job tell each other what they see, while it runs.

`digest` is what one node tells, `encoding` the only form in which it travels, `meeting_place` where
nodes leave it for each other, `sealed_place` such a place among strangers, `exchange` who asks whom
and what was heard when, `clocks` how far their clocks are apart. In jobs of thousands, `folding`
tells ranks that stand alike as one.
"""

__all__ = [
    "clocks",
    "digest",
    "encoding",
    "exchange",
    "folding",
    "meeting_place",
    "sealed_place",
    "store_place",
]
