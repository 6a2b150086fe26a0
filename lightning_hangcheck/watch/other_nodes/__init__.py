"""The sidecar among those of the job's other nodes.

`among_nodes` is this node's watch among theirs, which of them it is and where they meet; `joining`
how what they tell, and their silence, becomes part of our case, and how rounds end.
"""
