"""What ran, how long, what it cost, and what a restart would throw away.

`records` are the lines of the ledger, `book` the file that they are appended to, `story` what they
tell together. `fingerprints` tell whether a phase's files are as they were, `decision` what follows
from that for running it again. `spending` and `stalls` are kept while a run is watched.
"""
