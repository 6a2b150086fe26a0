"""What the source around a line tells: loops, tests of the rank, waits for a file to go.

`code_notes` reads it for every line on which a rank stands, `rank_tests` the tests in it, however
they are named. `marker_loops` finds loops that end with a file, `path_text` the path of that file.
`held_locks` tells which lock a line takes, and which ones it is inside of, `calls_ahead` whether
what runs from a line on calls collectives.
"""

__all__ = ["calls_ahead", "code_notes", "held_locks", "marker_loops", "path_text"]
