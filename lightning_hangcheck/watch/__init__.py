"""The sidecar: a process that watches the ranks of one node and reports what is proven.

`sidecar` is the program; `loop` reads, looks, judges and reports until the job is over. `schedule`
decides when to look, `incident` what is news, `pace` whether ranks keep their own pace, `roster`
who the ranks are. Work that may block is done elsewhere: `workers` reads foreign processes,
`writer` saves and prints. `link` is how others start the sidecar and talk to it. `other_nodes`
exchanges cases and verdicts with other nodes; `join_nodes` joins theirs to this node's case;
`round_ends` settles how a round ended on all nodes.
"""
