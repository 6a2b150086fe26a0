"""What happens to whole processes: ranks and DataLoader workers that are stopped, killed, raise."""

from __future__ import annotations

from corpus.generator.piece import Mechanism

STOPPED = Mechanism(
    name="stopped_by_a_signal",
    source="""
        def $function(affected):
            if affected:
                mark_onset()
                os.kill(os.getpid(), signal.SIGSTOP)
    """,
    imports=("os", "signal"),
    cause=("process_stopped",),
    affects="one",
    least_ranks=2,
)
KILLED = Mechanism(
    name="killed",
    source="""
        def $function(affected):
            if affected:
                mark_onset()
                os.kill(os.getpid(), signal.SIGKILL)
    """,
    imports=("os", "signal"),
    cause=("process_dead",),
    verdict=("crashed",),
    function=(),
    affects="one",
    least_ranks=2,
    has_process=False,
)
RAISED = Mechanism(
    name="raised",
    source="""
        def $function(affected):
            $noun = {} if affected else {"$noun": 1}
            if affected:
                mark_onset()
            return $noun["$noun"]
    """,
    cause=("process_dead",),
    verdict=("crashed",),
    function=(),
    affects="one",
    least_ranks=2,
    has_process=False,
)
LEFT = Mechanism(
    name="left_with_success",
    source="""
        def $function(affected):
            if affected:
                mark_onset()
                sys.stdout.flush()
                os._exit(0)
    """,
    imports=("os", "sys"),
    cause=("process_dead",),
    verdict=("dead", "crashed"),
    because="the store, or gloo's connections, may end with it, at which the others fail",
    function=(),
    affects="one",
    least_ranks=2,
    has_process=False,
    waiting=("store", "flag_file"),
)
WORKER_STUCK = Mechanism(
    name="worker_stuck",
    source="""
        def $function(affected):
            $noun = threading.Event()
            if affected:
                mark_onset()
            else:
                $noun.set()
            $noun.wait()
    """,
    imports=("threading",),
    cause=("dataloader_worker",),
    places=("worker",),
)
WORKER_STOPPED = Mechanism(
    name="worker_stopped",
    source=STOPPED.source,
    imports=STOPPED.imports,
    cause=("dataloader_worker",),
    places=("worker",),
)
WORKER_SPINS = Mechanism(
    name="worker_loops",
    source="""
        def $function(affected):
            tries = 0
            if affected:
                mark_onset()
            while affected or tries < 3:
                tries += 1
    """,
    cause=("dataloader_worker",),
    places=("worker",),
    slow=True,
)
WORKER_KILLED = Mechanism(
    name="worker_killed",
    source=KILLED.source,
    imports=KILLED.imports,
    cause=("dataloader_worker", "process_dead"),
    because="a worker was killed, at which torch raises in its rank, which then dies too; the"
    " others may be found waiting for it before they end",
    verdict=("crashed", "dead"),
    function=(),
    places=("worker",),
    affects="one",
    has_process=False,
)
ALL = (STOPPED, KILLED, RAISED, LEFT, WORKER_STUCK, WORKER_STOPPED, WORKER_SPINS, WORKER_KILLED)
