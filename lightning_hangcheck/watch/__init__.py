"""The sidecar: watches the ranks of one node from a process of its own, and tells what it proves.

From the top: `sidecar` (the program), `loop` (read, look, judge, tell until the job is over), which
asks `schedule` when to look, `alarm` what is news, `pace` whether ranks keep their own pace, and
`roster` who the ranks are. What can block is done by others: `workers` read foreign processes,
`writer` saves and prints. `link` is how outsiders start it and talk to it, `among_nodes` its watch
among those of other nodes, `joined_nodes` how what they tell becomes part of our case.
"""
