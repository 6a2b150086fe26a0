"""Looking at a job that runs already: a few times within two seconds, without disturbing it."""

from __future__ import annotations

import socket
import time
from importlib import import_module
from typing import TYPE_CHECKING

from lightning_hangcheck.attach.case import of_a_visit
from lightning_hangcheck.attach.job_search import command_of
from lightning_hangcheck.attach.recorded_session import beats_of, watch_over
from lightning_hangcheck.errors import NoJobFound
from lightning_hangcheck.look.exits import ExitWatcher
from lightning_hangcheck.look.proc import born_ns, root_of, slept_s
from lightning_hangcheck.look.sample import AT_ONCE, Subject, sample_all
from lightning_hangcheck.look.source import code_notes
from lightning_hangcheck.model.case import ProcessExit
from lightning_hangcheck.model.evidence import ProcessLook
from lightning_hangcheck.observe.looking import flights_of, where_ranks_stand
from lightning_hangcheck.observe.process_tree import ProcessTree
from lightning_hangcheck.text.shown import NANOSECONDS, utc_now

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.attach.job_search import FoundJob
    from lightning_hangcheck.attach.recorded_session import RecordedSession, Watch
    from lightning_hangcheck.model.beat import Beat
    from lightning_hangcheck.model.case import Case, CodeNote, Limits
    from lightning_hangcheck.model.evidence import Gap, Sample
    from lightning_hangcheck.model.flight import FlightRecord
    from lightning_hangcheck.observe.looking import Target

LOOKS_S = (0.0, 1.02, 2.04)
"""Three looks over two seconds tell a loop from a computation; see `judge.patience`."""
SECOND_GLANCE_S = 0.25
"""Where every rank has slept for long, a glance shows whether its processes work meanwhile: a core
in use counts 25 ticks of the kernel's clock in that time, and a fifth of one, `BUSY_SHARE`, 5."""
PROBE_LIMIT_S = 3.0
TIME_LIMIT_S = 30.0
STEPS = 3
"""Of what is left of that time a step gets a third: what comes after it must have its share."""
LEAST_S = 0.2


class Observer:
    """Looks at one job. Nothing is left in the job, and nothing of it waits for us.

    Args:
        job: As `job_search` found it.
        limits: Patience in force; of what is proven, never more than a second.
        recorded: The session in which the job records, if it does.
        local_values: Whether to read the ranks' local variables in the last look.
        time_limit_s: Seconds for all looks, where processes and their servers don't answer.
    """

    def __init__(
        self,
        job: FoundJob,
        limits: Limits,
        recorded: RecordedSession,
        *,
        local_values: bool = False,
        time_limit_s: float = TIME_LIMIT_S,
    ) -> None:
        self._job = job
        self._local_values = local_values
        self._recorded = recorded
        self._limits = of_a_visit(limits)
        self._exit_watcher = ExitWatcher()
        self._samples: dict[Target, list[Sample]] = {}
        self._exits: dict[int, ProcessExit] = {}
        self._gaps: dict[tuple[str, int | None], Gap] = {}
        self._mute: set[Target] = set()  # nobody waits twice for a stack that did not come in time
        self._slept: dict[int, float | None] = {}
        self._beats: dict[int, Beat] = {}
        self._flights: dict[int, FlightRecord] = {}
        self._watch: Watch | None = None
        self._deadline = time.monotonic() + time_limit_s
        self._command = command_of(job)
        self.host = socket.gethostname()
        self._born_ns = {rank.pid: born_ns(rank.pid) for rank in job.ranks}

    def take_evidence(self, run_id: str) -> Case:
        """Look at the job: for two seconds, or for a quarter where the kernel knows the rest.

        Args:
            run_id: For the case.

        Raises:
            NoJobFound: Nothing could be seen of any rank; the sentence says why.
        """
        began_ns = time.monotonic_ns()
        try:
            targets = self._begin()
            self._look(targets, last=False)
            self._ask_training_threads()
            self._refuse_blindness()
            _prepare_to_judge()
            case = self._glance(targets, run_id, began_ns)
            if case is not None:
                return case
            for moment_s in LOOKS_S[1:]:
                self._wait_until(began_ns + int(moment_s * NANOSECONDS))
                self._look(targets, last=moment_s == LOOKS_S[-1])
            return self._case(targets, run_id, began_ns)
        finally:
            self._exit_watcher.close()

    def _glance(self, targets: list[Target], run_id: str, began_ns: int) -> Case | None:
        """Look once more at a job that sleeps; None where that does not tell all."""
        asleep_s = min((slept or 0.0 for slept in self._slept.values()), default=0.0)
        if asleep_s < self._limits.idle_after:
            return None
        self._wait_until(began_ns + int(SECOND_GLANCE_S * NANOSECONDS))
        self._look(targets, last=True)
        case = self._case(targets, run_id, began_ns)
        return case if _stands_still(case) else None

    def _begin(self) -> list[Target]:
        now_ns = time.monotonic_ns()
        targets: list[Target] = []
        for found in self._job.ranks:
            self._slept[found.pid] = slept_s(found.pid)
            self._exit_watcher.watch(found.pid)
            process_tree = ProcessTree(found.pid, root_belongs=True)
            process_tree.take(now_ns)
            targets += process_tree.targets(found.rank, found.pid, self._job.pids)
        return targets

    def _ask_training_threads(self) -> None:
        """Where the main thread only serves others, it counts how long the one that trains slept.

        Which that is, the first look tells; it pauses nobody, so it woke nobody.
        """
        for target, (sample, *_) in self._samples.items():
            first = sample.stack.threads[0] if sample.stack is not None else None
            if target.role == "rank" and first is not None and first.tid not in (None, target.pid):
                self._slept[target.pid] = slept_s(target.pid, first.tid)

    def _look(self, targets: list[Target], *, last: bool) -> None:
        present = [target for target in targets if target.rank not in self._exits]
        subjects = [
            Subject(
                pid=target.pid,
                rank=target.rank,
                python=target.python and target not in self._mute,
                local_values=last and self._local_values and target.role == "rank",
                trains=target.role == "rank",
            )
            for target in present
        ]
        began, limit_s = time.monotonic(), self._limit_s(len(subjects))
        taken = sample_all(subjects, limit_s)
        late = time.monotonic() - began >= limit_s
        for target, (sample, gaps) in zip(present, taken, strict=True):
            self._samples.setdefault(target, []).append(sample)
            if late and sample.stack is None:
                self._mute.add(target)
            self._gaps.update(((gap.what, gap.rank), gap) for gap in gaps)

    def _read_recorded(self, targets: list[Target]) -> None:
        """Read what the ranks recorded: pages last, so that they are as new as the last look."""
        self._gaps.update(((gap.what, gap.rank), gap) for gap in self._recorded.gaps)
        session = self._recorded.session
        if session is None:
            return
        present = [target for target in targets if target.rank not in self._exits]
        limit_s = self._limit_s(len(self._job.ranks))
        self._flights, gaps = flights_of(present, session.torch_servers, limit_s)
        self._gaps.update(((gap.what, gap.rank), gap) for gap in gaps)
        self._beats = beats_of(session, self._born_ns)
        self._watch = watch_over(session)

    def _limit_s(self, processes: int) -> float:
        """Seconds for one of so many processes, if all are asked and the other steps come too."""
        left_s = self._deadline - time.monotonic()
        rounds = max(1, -(-processes // AT_ONCE))
        return max(LEAST_S, min(PROBE_LIMIT_S, left_s / STEPS / rounds))

    def _wait_until(self, moment_ns: int) -> None:
        """Wait, and see meanwhile which ranks end."""
        while True:
            left_s = max(0.0, (moment_ns - time.monotonic_ns()) / NANOSECONDS)
            for ended in self._exit_watcher.wait(left_s):
                rank = next(one.rank for one in self._job.ranks if one.pid == ended.pid)
                self._exits[rank] = ProcessExit(
                    order=len(self._exits), at=utc_now(), exit_code=ended.exit_code
                )
            if left_s <= 0:
                return

    def _refuse_blindness(self) -> None:
        """Without any stack a healthy job and a hung one look the same: say so, and no verdict."""
        own = {
            target: samples for target, samples in self._samples.items() if target.role == "rank"
        }
        if any(sample.stack is not None for samples in own.values() for sample in samples):
            return
        if any(_stopped(samples) for samples in own.values()):
            return
        gap = next((gap for gap in self._gaps.values() if gap.kind == "stack"), None)
        why, remedy = (gap.why, gap.remedy) if gap is not None else ("its processes are gone", "")
        raise NoJobFound(
            f"no stack of the job can be read: {why}",
            remedy or "look for its processes again: hangcheck attach",
        )

    def _case(self, targets: list[Target], run_id: str, began_ns: int) -> Case:
        from lightning_hangcheck.attach.case import Observation, attached_case

        self._read_recorded(targets)
        self._wait_until(0)
        taken_ns = time.monotonic_ns()
        looks = {
            found.rank: tuple(
                ProcessLook(
                    pid=target.pid, role=target.role, index=target.index, samples=tuple(samples)
                )
                for target, samples in self._samples.items()
                if target.rank == found.rank
            )
            for found in self._job.ranks
        }
        return attached_case(
            Observation(
                job=self._job,
                looks=looks,
                slept=self._slept,
                exits=self._exits,
                beats=self._beats,
                flights=self._flights,
                watch=self._watch,
                gaps=tuple(self._gaps.values()),
                code=self._code(),
                limits=self._limits,
                watched_s=(taken_ns - began_ns) / NANOSECONDS,
                ages_s=self._ages_s(),
                command=self._command,
                host=self.host,
                taken_at=utc_now(),
                taken_ns=taken_ns,
            ),
            run_id,
        )

    def _ages_s(self) -> tuple[float, ...]:
        now_ns = time.monotonic_ns()
        return tuple((now_ns - born) / NANOSECONDS for born in self._born_ns.values())

    def _code(self) -> tuple[CodeNote, ...]:
        newest = [(target, samples[-1]) for target, samples in self._samples.items()]
        began_s = time.time() - max(self._ages_s(), default=0.0)
        root = root_of(newest[0][0].pid) if newest else ""
        return code_notes(where_ranks_stand(newest), began_s, PROBE_LIMIT_S, root)


def _prepare_to_judge() -> None:
    """Import the judgement: a tenth of a second, which passes between two looks."""
    for name in ("lightning_hangcheck.attach.case", "lightning_hangcheck.judge.verdict"):
        import_module(name)


def _stands_still(case: Case) -> bool:
    from lightning_hangcheck.attach.case import stands_still

    return stands_still(case.ranks)


def _stopped(samples: Sequence[Sample]) -> bool:
    return any(sample.kernel is not None and sample.kernel.state == "T" for sample in samples)
