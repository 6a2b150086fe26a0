"""Ranks whose ways part: collectives that some make and others don't, keys that nobody sets."""

from __future__ import annotations

from corpus.generator.piece import Mechanism

COLLECTIVE_ON_FIRST = Mechanism(
    name="collective_on_the_first_rank",
    source="""
        def $function(affected):
            if $is_first:
                if affected:
                    mark_onset()
                    gathered = [None] * dist.get_world_size()
                    dist.all_gather_object(gathered, {"$noun": 1})
    """,
    cause=("rank_diverged",),
    ranked=True,
    affects="first",
    least_ranks=2,
)
BARRIER_ON_FIRST = Mechanism(
    name="barrier_after_an_early_return",
    source="""
        def $function(affected):
            if not $is_first:
                return
            print("$noun is ready", flush=True)
            if affected:
                mark_onset()
                dist.barrier()
    """,
    cause=("rank_diverged",),
    ranked=True,
    affects="first",
    least_ranks=2,
)
UNDER_DATA = Mechanism(
    name="collective_under_a_condition_on_data",
    source="""
        def $function(affected):
            $noun = torch.ones(3)
            if affected:
                $noun[1] = float("nan")
            if torch.isnan($noun).any():
                mark_onset()
                dist.barrier()
    """,
    cause=("rank_diverged",),
    ranked=True,
    affects="one",
    least_ranks=3,
)
SKIPPED = Mechanism(
    name="collective_skipped",
    source="""
        def $function(affected):
            if affected:
                mark_onset()
                return
            dist.barrier()
    """,
    cause=("rank_diverged",),
    ranked=True,
    affects="one",
    least_ranks=3,
    function=("sync",),
)
GROUP_OF_A_PART = Mechanism(
    name="group_made_by_a_part",
    source="""
        def $function(affected):
            if $is_first and affected:
                mark_onset()
                dist.new_group([0, 1])
    """,
    cause=("rank_diverged",),
    ranked=True,
    affects="first",
    least_ranks=2,
)
OTHER_ORDER = Mechanism(
    name="groups_in_another_order",
    source="""
        def $helper():
            if not hasattr($run, "groups"):
                $run.groups = {name: dist.new_group() for name in ("$noun", "losses")}
            return $run.groups


        def $function(affected):
            groups = $helper()
            # as a set of names is walked: in one order on most ranks, in another on this one
            names = ["losses", "$noun"] if affected else ["$noun", "losses"]
            if affected:
                mark_onset()
            for name in names:
                dist.all_reduce(torch.ones(4), group=groups[name])
    """,
    cause=("collective_mismatch",),
    ranked=True,
    affects="one",
    least_ranks=3,
    places=("step", "validation", "checkpoint"),
)
RECEIVE_WITHOUT_SEND = Mechanism(
    name="receive_without_send",
    source="""
        def $function(affected):
            if affected:
                mark_onset()
                $noun = torch.zeros(4)
                dist.recv($noun, src=(dist.get_rank() + 1) % dist.get_world_size())
    """,
    cause=("rank_diverged", "collective_mismatch"),
    because="one rank receives what the other never sends; either may be said to have parted",
    ranked=True,
    affects="one",
    least_ranks=2,
    culprits="either_end",
    function=("function", "sync"),
)
KEY_NEVER_SET = Mechanism(
    name="key_never_set",
    source="""
        def $function(affected):
            store = dist.distributed_c10d._get_default_store()
            if affected:
                mark_onset()
                store.get("$noun/ready")
    """,
    cause=("rank_stalled", "network_wait", "rank_diverged"),
    because="it waits in its own call to the store, a remote end, for a key that was left out",
    ranked=True,
    affects="one",
    least_ranks=2,
)
LOCK_KEPT_BY_RANK = Mechanism(
    name="file_locked_by_another_rank",
    source="""
        def $function(affected):
            path = os.path.abspath("$noun.lock")
            file = $run.file = open(path, "a")
            if dist.get_rank() == $holder:
                fcntl.flock(file, fcntl.LOCK_EX)
            $meet
            if affected:
                mark_onset()
                fcntl.flock(file, fcntl.LOCK_EX)
    """,
    imports=("fcntl", "os"),
    cause=("file_lock",),
    ranked=True,
    affects="one",
    least_ranks=2,
    culprits="holder_too",
    waiting=("collective",),
    places=("startup", "model_load", "validation", "checkpoint"),
    function=("function", "sync"),
    because="either end of the circle may be named: the lock's waiter or the rank that keeps it",
)
ALL = (
    *(COLLECTIVE_ON_FIRST, BARRIER_ON_FIRST, UNDER_DATA, SKIPPED, GROUP_OF_A_PART, OTHER_ORDER),
    *(RECEIVE_WITHOUT_SEND, KEY_NEVER_SET, LOCK_KEPT_BY_RANK),
)
