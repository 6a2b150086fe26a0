"""The sidecar: watches the ranks of one node from a process of its own, and tells what it proves.

From the top: `sidecar` (the program), `service` (its life), `loop` (read, look, judge, tell), with
`schedule` (when to look), `lapses` (when nobody watched), `recovery` (do they advance again),
`shutdown` (what ends the judging), `telling` (what is told, and to whom), `ranks` (what is known of
each), `pace` (whether they keep their own) and `other_nodes` (what those of the job's other nodes
add); `hidden_ranks` says where ranks cannot be seen. Outsiders start it (`starting`) and talk to
it (`messages`).
"""

__all__ = ["messages", "starting"]
