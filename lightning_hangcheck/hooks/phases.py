"""A named phase of a script, kept in the ledger: duration, place, inputs, result.

Whether a phase runs again is decided once for all ranks of the job. Only rank 0 writes, with a time
limit. A ledger that cannot be written never stops training.
"""

from __future__ import annotations

import math
import os
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import msgspec

from lightning_hangcheck import log
from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.hooks.models import offloaded_so_far
from lightning_hangcheck.hooks.rendezvous import find_peer_group, join_rendezvous
from lightning_hangcheck.identity import Identity, identify
from lightning_hangcheck.ledger import ledger_file, phase_history
from lightning_hangcheck.ledger.phase_history import (
    GOOD,
    POOR,
    Decision,
    IfDone,
    PhaseDone,
    PhaseHistory,
)
from lightning_hangcheck.ledger.spending import Prices, read_prices
from lightning_hangcheck.look.gpu import gpu_names
from lightning_hangcheck.look.programs import ChildLate, answer_of
from lightning_hangcheck.machine import read_process_stat
from lightning_hangcheck.model.codec import encode, json_decoder
from lightning_hangcheck.recorder.announcer import attempt, describe_exception
from lightning_hangcheck.recorder.lifecycle import current
from lightning_hangcheck.text.shown import one_line, show_command, utc_now
from lightning_hangcheck.time_limit import NoAnswer, within

if TYPE_CHECKING:
    from collections.abc import Iterable

    Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

LOOK_LIMIT_S = 30.0  # for the fingerprint of one file or folder; at most 64 MiB are read
WRITE_LIMIT_S = 2.0  # a line takes microseconds; a busy network disk takes a second
GIT_LIMIT_S = 2.0  # milliseconds, except for a huge working folder on a network disk
GPU_LIMIT_S = 5.0  # waking 8 GPUs may take the driver a second
LONGEST_ERROR = 500  # characters of the error that ended a phase
NEEDS_A_PERSON = 3
REUSABLE = "HANGCHECK_IF_DONE=reuse or HANGCHECK_IF_DONE=rerun answers it"
NOT_REUSABLE = "HANGCHECK_IF_DONE=rerun runs all of them, HANGCHECK_IF_DONE=reuse only this one"


class Agreed(msgspec.Struct, frozen=True):
    """What the first rank decided, for all; ``refuse``: the phase must not run twice."""

    act: Literal["run", "reuse", "stop", "refuse"]
    why: str
    remedy: str = ""


class phase:  # noqa: N801 - called like a function, as `section` is
    """Keep a part of the work in the ledger.

    Python cannot skip the body of a ``with``: check `needed` in the body. Nothing is deleted.

    Args:
        name: The same each time.
        inputs: Files and folders that the phase reads.
        outputs: Files and folders that it makes; checked when it ends.
        metric: Name of the metric that rates it: a share, larger is better; default: the only one.
        if_done: What to do if it is done already: ``rerun`` it; ``reuse`` its outputs if inputs and
            outputs are unchanged; ``error`` (`PhaseDone`); or ``ask``: reuse if the metric is good,
            run if it is poor, else ask. Except with ``rerun`` the ranks meet, and rank 0 decides.
            With ``ask`` a person is also asked before a phase that this phase depends on runs
            again. Without a terminal it ends with code 3.
        good: From here on the metric is good.
        poor: Below this it is poor.
    """

    def __init__(
        self,
        name: str,
        *,
        inputs: Paths = (),
        outputs: Paths = (),
        metric: str | None = None,
        if_done: IfDone = "rerun",
        good: float = GOOD,
        poor: float = POOR,
    ) -> None:
        if if_done not in get_args(IfDone):
            raise BadUsage(
                f"if_done={if_done!r} is none of rerun, reuse, ask, error", 'write if_done="reuse"'
            )
        if not poor <= good:
            wrong = f"poor={poor:g} is above good={good:g}"
            raise BadUsage(wrong, f"write good={GOOD}, poor={POOR}")
        self._name, self._deciding = one_line(str(name)), metric or ""
        self._input_paths, self._output_paths = _absolute(inputs), _absolute(outputs)
        self._if_done, self._thresholds = if_done, (good, poor)
        self._id = os.urandom(4).hex()
        self._metrics: dict[str, float] = {}
        self._began_ns, self._began_cpu_s = 0, 0.0
        self._recorder, self._identity = current(), identify(os.environ)
        settings = self._settings = self._recorder.settings
        self._writes = not settings.disable and not self._identity.rank
        try:
            self._file = ledger_file.find_ledger(settings.ledger)
        except OSError:  # the working folder was removed; the first write reports it
            self._file = Path(settings.ledger or ledger_file.LEDGER_FILE)
        self._decision = Decision(act="run", why="")
        self._inputs: tuple[ledger_file.Fingerprint, ...] = ()
        self._needed = True

    @property
    def needed(self) -> bool:
        """Whether the body must run; False if earlier results are reused."""
        return self._needed

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics so far, or those recorded earlier if the phase is reused."""
        return dict(self._metrics)

    def metric(self, name: str, value: float) -> None:
        """Write a finite number at once, so that a killed phase keeps it. Never raises."""
        try:
            number = float(value)
        except Exception:  # noqa: BLE001 - a user's object may refuse in any way
            number = math.nan
        if not math.isfinite(number):
            log.once(f"metric {name}", f"metric {name} is no finite number; it is not kept")
            return
        measured = {str(name): number}
        self._metrics |= measured
        if self._needed:
            self._write(
                ledger_file.Measured(
                    id=self._id, at=utc_now(), after_s=self._seconds(), metrics=measured
                )
            )

    def __enter__(self) -> phase:
        if not self._settings.disable:
            self._choose()
            attempt(f"the beginning of phase {self._name} in the ledger", self._begin)
        self._began_ns, self._began_cpu_s = time.monotonic_ns(), sum(os.times()[:4])
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if self._needed and self._writes:
            attempt(f"the end of phase {self._name} in the ledger", self._end, error)

    def _choose(self) -> None:
        """Do what all ranks agree on; only this may stop training, as the user asked for it."""
        if self._if_done == "rerun" and (self._identity.world_size or 1) > 1:
            # ranks need not meet, and the phase may run on only one of them: nobody is asked
            attempt(f"deciding about phase {self._name}", self._weigh)
            agreed = Agreed("run", "its script runs it each time")
        else:
            agreed = self._agree()
        earlier = self._decision.earlier
        self._needed = agreed.act == "run"
        self._decision = msgspec.structs.replace(self._decision, why=agreed.why)
        if not self._writes or earlier is None:
            return
        stale = phase_history.stale_in_words(self._decision)
        if self._needed and (stale or self._if_done != "rerun"):
            log.once(f"phase {self._id}", f"phase {self._name} runs again: {agreed.why}{stale}")
        if not self._needed:
            does = f"is reused, made {earlier.begun_at}: {agreed.why}"
            log.once(f"phase {self._id}", f"phase {self._name} {does}")
            self._metrics = dict(earlier.metrics)
            self._write(
                ledger_file.Reused(id=earlier.id, at=utc_now(), phase=self._name, why=agreed.why)
            )

    def _agree(self) -> Agreed:
        """Let the first rank decide whether the phase runs or is reused, for every rank."""
        # All run if ranks cannot meet, or nothing can be decided: a rank that skips the work would
        # leave the others waiting. `PhaseDone` and `SystemExit` are raised on every rank.
        peers, payload = find_peer_group(self._recorder), b""
        if peers is None and (self._recorder.identity.world_size or 1) > 1:
            return Agreed("run", "the ranks cannot meet to agree")
        first = peers is None or peers.index == 0
        if first:
            alone = peers is None or (peers.size or 1) == 1
            agreed = attempt(f"deciding about phase {self._name}", self._decide, alone)
            payload = encode(agreed or Agreed("run", "it could not be decided"))
        limit = self._settings.meeting_timeout
        limit += LOOK_LIMIT_S * (len(self._input_paths) + len(self._output_paths))
        brought = join_rendezvous(f"phase {self._name}", limit, payload, peers)
        agreed = json_decoder(Agreed).decode(brought[0])
        if agreed.act == "refuse":
            raise PhaseDone(agreed.why, agreed.remedy)
        if agreed.act == "stop":
            if first:
                sys.stderr.write(agreed.why)
            raise SystemExit(NEEDS_A_PERSON)
        return agreed

    def _decide(self, alone: bool) -> Agreed:
        try:
            decision = phase_history.answered(self._weigh(), self._settings.if_done)
        except PhaseDone as error:
            return Agreed("refuse", str(error.args[0]), error.remedy)
        if decision.act != "ask":
            return Agreed(decision.act, decision.why)
        prices = attempt("reading HANGCHECK_PRICE", read_prices, [self._settings.price or ""])
        asked = phase_history.question(decision, prices or Prices())
        if not (alone and sys.stdin is not None and sys.stdin.isatty()):
            answers = REUSABLE if decision.reusable else NOT_REUSABLE
            return Agreed("stop", f"{asked}\n  nobody is here to answer; {answers}\n")
        # ask until one of the words comes; no answer means stop
        sys.stderr.write(f"{asked}\n")
        acts: dict[str, Literal["run", "reuse"]] = {"rerun": "run"}
        acts = {"reuse": "reuse", **acts} if decision.reusable else acts
        while True:
            sys.stderr.write(f"{', '.join(acts)} or stop? ")
            sys.stderr.flush()
            line = sys.stdin.readline()
            answer = line.strip().lower()
            if answer in acts:
                return Agreed(acts[answer], f"{decision.why}; a person said {answer}")
            if answer == "stop" or not line:
                return Agreed("stop", "")

    def _weigh(self) -> Decision:
        if self._writes:
            read = attempt("reading the ledger", within, WRITE_LIMIT_S, self._history)
            history = read or PhaseHistory()
            self._inputs = tuple(map(_look, self._input_paths))
            known = self._name, self._if_done, self._inputs, self._output_paths, self._thresholds
            self._decision = phase_history.decide(history, *known, _look)
        return self._decision

    def _history(self) -> PhaseHistory:
        lines = ledger_file.read(self._file) if self._file.exists() else ledger_file.Pages()
        return phase_history.tell(lines)

    def _begin(self) -> None:
        if self._writes and self._needed:
            begun = ledger_file.Begun(
                id=self._id,
                at=utc_now(),
                phase=self._name,
                place=_look_around(self._identity),
                deciding=self._deciding,
                ask_from=self._thresholds[1] if self._if_done == "ask" else None,
                # not computed yet if ranks could not meet, or nothing could be decided
                inputs=self._inputs or tuple(map(_look, self._input_paths)),
            )
            self._write(begun)

    def _end(self, error: BaseException | None) -> None:
        ended_well = error is None or (isinstance(error, SystemExit) and not error.code)
        said = "" if ended_well or error is None else describe_exception(error, LONGEST_ERROR)
        ended = ledger_file.Ended(
            id=self._id,
            at=utc_now(),
            duration_s=self._seconds(),
            cpu_s=round(sum(os.times()[:4]) - self._began_cpu_s, 3),
            error=said,
            metrics=self._metrics,
            outputs=() if said else tuple(map(_look, self._output_paths)),
            offloaded=tuple(offloaded_so_far),
        )
        # a good end replaces the earlier phase and, if results differ, what depends on that
        earlier = self._decision.earlier if not said else None
        gone = [] if earlier is None else [(earlier, f"it was run again: {self._decision.why}")]
        if earlier is not None and not earlier.made_same(ended.outputs):
            left = f"{self._name}, which it rests on, was run again"
            gone += [(phase, left) for phase in self._decision.invalidated]
        discarded = [
            ledger_file.Discarded(id=phase.id, at=utc_now(), phase=phase.name, by=self._id, why=why)
            for phase, why in gone
        ]
        self._write(ended, *discarded)

    def _write(self, *lines: ledger_file.AnyLine) -> None:
        """Append lines and renew ``state.json``; a failure is logged once and otherwise ignored."""

        def work() -> None:
            for line in lines:
                ledger_file.append(self._file, line)
            ledger_file.write_state(self._file, self._history())

        if not self._writes:
            return
        try:
            within(WRITE_LIMIT_S, work)
        except Exception as error:  # noqa: BLE001 - whatever storage, names and values refuse
            # storage that did not answer once is not tried again
            self._writes = not isinstance(error, NoAnswer)
            log.once(
                "ledger",
                f"the ledger {self._file} cannot be written ({error}); training goes on; name "
                "one elsewhere: HANGCHECK_LEDGER",
            )

    def _seconds(self) -> float:
        return round((time.monotonic_ns() - self._began_ns) / 1e9, 3)


def _absolute(paths: Paths) -> tuple[str, ...]:
    found = []
    for path in [paths] if isinstance(paths, (str, os.PathLike)) else paths:
        named = os.fspath(path)
        if "://" not in named:
            with suppress(OSError):  # the working folder was removed
                named = os.path.abspath(named)  # noqa: PTH100
        found.append(named)
    return tuple(found)


def _look(path: str) -> ledger_file.Fingerprint:
    try:
        return within(LOOK_LIMIT_S, partial(ledger_file.fingerprint, path))
    except NoAnswer as error:
        return ledger_file.Fingerprint(path=path, how=f"not read: {error}")


def _look_around(identity: Identity) -> ledger_file.Place:
    """Describe this process; about 20 ms, or 0.3 s with GPUs. Each step has a time limit."""

    def git(*words: str) -> str | None:
        """Run git without taking a lock of the repository; None if it fails."""
        environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
        try:
            ended = answer_of(["git", *words], GIT_LIMIT_S, environment)
        except (OSError, ChildLate):
            return None
        return ended.stdout.decode(errors="replace").strip() if ended.returncode == 0 else None

    stat = read_process_stat(os.getpid())
    commit = git("rev-parse", "HEAD")
    tracked = ("status", "--porcelain", "--untracked-files=no")
    changes = git(*tracked) if commit is not None else None
    return ledger_file.Place(
        host=os.uname().nodename,
        pid=os.getpid(),
        started_ticks=stat.started_ticks if stat is not None else 0,
        ranks=identity.world_size or 1,
        gpus=gpu_names(GPU_LIMIT_S),
        commit=commit or "",
        dirty=None if changes is None else bool(changes),
        command=show_command(sys.orig_argv),
    )
