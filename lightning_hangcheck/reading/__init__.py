"""Reads evidence: what a process does, where it stands, and what it waits for.

What a thread waits for and where that wait ends (`waits`), what a process and a rank do and at
which pace (`activity`), what torch's record tells (`records`), where a rank stands and in which
phase (`place`, `phase_of_life`, `source`), what an exit code says (`exit_codes`) and a rank's
`last_words`, what a silent node's silence comes from (`node_silence`), and in what ranks that stand
alike are equal (`standing`). `knowledge` is what is known of other people's code; `wording` says it
all. Nothing here compares ranks or blames one: that is ``diagnosis``.
"""

__all__ = [
    "activity",
    "exit_codes",
    "knowledge",
    "last_words",
    "node_silence",
    "phase_of_life",
    "place",
    "records",
    "source",
    "standing",
    "waits",
    "wording",
]
