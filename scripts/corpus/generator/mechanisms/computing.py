"""Computations that never end, and calls that keep the interpreter to themselves."""

from __future__ import annotations

from corpus.generator.piece import Mechanism

SPIN = Mechanism(
    name="loop_without_end",
    source="""
        def $function(affected):
            error, rate = 1.0, 0.5
            if affected:
                mark_onset()
            while error > (-1.0 if affected else 0.1):
                error = error * rate if error > 1e-300 else 1.0
            return error
    """,
    cause=("spinning",),
    threads=("main", "pool", "process"),
    slow=True,
)
SPIN_THROUGH_FUNCTIONS = Mechanism(
    name="loop_without_end_through_functions",
    source="""
        def $third(seed):
            return (seed * 1103515245 + 12345) % 2147483648


        def $helper(seed):
            return $third(seed) / 2147483648


        def $function(affected):
            seed = 7
            if affected:
                mark_onset()
            while $helper(seed) < (2.0 if affected else 1e-9) and (affected or seed < 100):
                seed = $third(seed)
            return seed
    """,
    cause=("spinning",),
    function=("function", "helper", "third"),
    because="the loop goes through all three, and any is the innermost at a given moment",
    slow=True,
)
POLLING = Mechanism(
    name="polls_what_never_changes",
    source="""
        def $function(affected):
            $noun = [] if affected else [1]
            if affected:
                mark_onset()
            while not $noun:
                time.sleep(0)
    """,
    imports=("time",),
    cause=("spinning", "rank_stalled"),
    because="it burns CPU in a loop that yields at each turn and waits for its own list",
    slow=True,
)
BACKTRACKING = Mechanism(
    name="regular_expression_backtracks",
    source="""
        def $function(affected):
            text = "a" * (64 if affected else 8) + "!"
            if affected:
                mark_onset()
            return re.match("(a+)+$$", text)
    """,
    imports=("re",),
    cause=("spinning", "gil_held"),
    because="the expression burns CPU for years and holds the interpreter lock meanwhile",
    slow=True,
)
LOCK_KEPT = Mechanism(
    name="interpreter_lock_kept_in_a_call",
    source="""
        def $function(affected):
            library = ctypes.PyDLL(None)
            if affected:
                mark_onset()
                library.pause()
    """,
    imports=("ctypes",),
    cause=("gil_held",),
    threads=("main", "pool"),
)
ALL = (SPIN, SPIN_THROUGH_FUNCTIONS, POLLING, BACKTRACKING, LOCK_KEPT)
