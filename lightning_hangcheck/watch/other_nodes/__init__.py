"""The sidecar among those of the job's other nodes.

`among_nodes` is this node's watch among theirs, `late_place` which of them it is, as soon as that
is known, `meeting_choice` where they meet, `joining` how what they tell becomes part of our case,
`last_words` how the whole job ended, `ended_rounds` how a round of it did, `silent_nodes` what is
said of those that are not heard, `contradictions` of those that cannot be of one job,
`round_number` how all count a round alike, `relayed` which verdicts all tell.
"""

__all__ = ["among_nodes", "ended_rounds", "late_place", "meeting_choice"]
