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
from typing import TYPE_CHECKING, get_args

from lightning_hangcheck import log
from lightning_hangcheck.errors import BadUsage, HangcheckError
from lightning_hangcheck.hooks.models import offloaded_so_far
from lightning_hangcheck.hooks.rendezvous import find_peer_group, join_rendezvous
from lightning_hangcheck.identity import identify
from lightning_hangcheck.ledger import ledger_file, phase_reuse
from lightning_hangcheck.ledger.ledger_file import Fingerprint, PastPhase
from lightning_hangcheck.ledger.phase_reuse import GOOD, POOR, Decision, IfDone
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


class PhaseDone(HangcheckError):
    """A phase that must not run twice is already done."""


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

    Attributes:
        needed: Whether the body must run; False if earlier results are reused.
        metrics: Metrics so far, or those recorded earlier if the phase is reused.
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
        self.needed, self.metrics = True, dict[str, float]()
        self._began_s = self._began_cpu_s = 0.0
        self._recorder = current()
        self._settings = self._recorder.settings
        self._writes = not self._settings.disable and not identify(os.environ).rank
        self._file = ledger_file.find_ledger(self._settings.ledger)
        self._inputs: tuple[Fingerprint, ...] = ()
        self._decision = Decision(why="it could not be decided")

    def metric(self, name: str, value: float) -> None:
        """Write a finite number at once, so that a killed phase keeps it. Never raises."""
        try:
            number = float(value)
        except Exception:  # noqa: BLE001 - a user's object may refuse in any way
            number = math.nan
        if not math.isfinite(number):
            log.once(f"metric {name}", f"metric {name} is no finite number; it is not kept")
            return
        self.metrics = {**self.metrics, str(name): number}
        if self.needed:
            now, lasted = utc_now(), self._seconds()
            line = PastPhase(id=self._id, at=now, duration_s=lasted, metrics=self.metrics)
            self._write(line, renews_state=False)  # which would take longer from metric to metric

    def __enter__(self) -> phase:
        if self._writes:
            attempt(f"deciding about phase {self._name}", self._weigh)
        if not self._settings.disable:
            self._choose()
        if self._writes and self.needed:
            attempt(f"the beginning of phase {self._name} in the ledger", self._begin)
        self._began_s, self._began_cpu_s = time.monotonic(), sum(os.times()[:4])
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if self._writes and self.needed:
            attempt(f"the end of phase {self._name} in the ledger", self._end, error)

    def _weigh(self) -> None:
        self._inputs = tuple(map(_look, self._input_paths))
        history = within(WRITE_LIMIT_S, partial(ledger_file.read_any, self._file))
        known = self._name, self._if_done, self._inputs, self._output_paths, self._thresholds
        self._decision = phase_reuse.decide(history, *known, _look)

    def _choose(self) -> None:
        """Do what all ranks agree on; only this may stop training, as the user asked for it."""
        act, why = self._agree()
        earlier, invalidated = self._decision.earlier, self._decision.invalidated
        self.needed, self._why = act == "run", why
        if not self._writes or earlier is None:
            return
        if not self.needed:
            does = f"is reused, made {earlier.begun_at}: {why}"
            log.once(f"phase {self._id}", f"phase {self._name} {does}")
            self.metrics = dict(earlier.metrics)
            self._write(PastPhase(id=earlier.id, at=utc_now(), reused=earlier.reused + 1))
        elif invalidated or self._if_done != "rerun":
            stale = ", ".join(f"{one.name} ({phase_reuse.metrics_of(one)})" for one in invalidated)
            stale = stale and f"; if it makes something else, this becomes stale: {stale}"
            log.once(f"phase {self._id}", f"phase {self._name} runs again: {why}{stale}")

    def _agree(self) -> tuple[str, str]:
        """Return what every rank does, as the first rank decides, and why."""
        # All run if ranks cannot meet, or nothing can be decided: a rank that skips the work would
        # leave the others waiting. `PhaseDone` and `SystemExit` are raised on every rank.
        several = (self._recorder.identity.world_size or 1) > 1
        if self._if_done == "rerun" and several:
            # ranks need not meet, and the phase may run on only one of them: nobody is asked
            return "run", self._decision.why
        peers = find_peer_group(self._recorder)
        if peers is None and several:
            return "run", "the ranks cannot meet to agree"
        payload, first = b"", peers is None or peers.index == 0
        if first:
            alone = peers is None or (peers.size or 1) == 1
            decided = attempt(f"deciding about phase {self._name}", self._decide, alone)
            payload = encode(decided or ("run", "it could not be decided"))
        limit = self._settings.meeting_timeout
        limit += LOOK_LIMIT_S * (len(self._input_paths) + len(self._output_paths))
        brought = join_rendezvous(f"phase {self._name}", limit, payload, peers)
        act, why = json_decoder(tuple[str, str]).decode(brought[0])
        if act == "refuse":
            remedy = 'remove it from the script, or give it if_done="reuse" or if_done="rerun"'
            raise PhaseDone(why, remedy)
        if act == "stop":
            if first:
                sys.stderr.write(why)
            raise SystemExit(NEEDS_A_PERSON)
        return act, why

    def _decide(self, alone: bool) -> tuple[str, str]:
        """Return what to do and why; HANGCHECK_IF_DONE or a person answers a question."""
        decision, answer = self._decision, self._settings.if_done
        act, why, reusable = decision.act, decision.why, self._if_done != "rerun"
        if answer != "ask" and act in ("ask", "reuse") and act != answer:
            act = "reuse" if answer == "reuse" and reusable else "run"
            return act, f"{why}; HANGCHECK_IF_DONE={answer}"
        if act != "ask":
            return act, why
        prices = attempt("reading HANGCHECK_PRICE", read_prices, [self._settings.price or ""])
        asked = phase_reuse.question(decision, self._if_done, prices or Prices())
        if not (alone and sys.stdin is not None and sys.stdin.isatty()):
            reuse, rerun = "HANGCHECK_IF_DONE=reuse", "HANGCHECK_IF_DONE=rerun"
            answers = f"{reuse} or {rerun} answers it"
            if not reusable:
                answers = f"{rerun} runs all of them, {reuse} only this one"
            return "stop", f"{asked}\n  nobody is here to answer; {answers}\n"
        # ask until one of the words comes; no answer means stop
        words = {"reuse": "reuse", "rerun": "run"} if reusable else {"rerun": "run"}
        sys.stderr.write(f"{asked}\n")
        while True:
            sys.stderr.write(f"{', '.join(words)} or stop? ")
            sys.stderr.flush()
            line = sys.stdin.readline()
            word = line.strip().lower()
            if word in words:
                return words[word], f"{why}; a person said {word}"
            if word == "stop" or not line:
                return "stop", ""

    def _begin(self) -> None:
        now = utc_now()
        line = PastPhase(
            id=self._id,
            at=now,
            begun_at=now,
            name=self._name,
            place=_look_around(),
            deciding=self._deciding,
            ask_from=self._thresholds[1] if self._if_done == "ask" else None,
            inputs=self._inputs,
        )
        self._write(line)

    def _end(self, error: BaseException | None) -> None:
        ended_well = error is None or (isinstance(error, SystemExit) and not error.code)
        said = "" if ended_well or error is None else describe_exception(error, LONGEST_ERROR)
        end = PastPhase(
            id=self._id,
            at=utc_now(),
            ended=True,
            duration_s=self._seconds(),
            cpu_s=round(sum(os.times()[:4]) - self._began_cpu_s, 3),
            error=said,
            metrics=self.metrics,
            outputs=() if said else tuple(map(_look, self._output_paths)),
            offloaded=tuple(offloaded_so_far),
        )
        lines, earlier = [end], self._decision.earlier
        # a good end replaces the earlier phase and, if results differ, what depends on that
        if not said and earlier is not None:
            why = f"it was run again: {self._why}"
            lines.append(PastPhase(id=earlier.id, at=end.at, discarded=why))
            if earlier.made != end.made or not (end.made and all(end.made.values())):
                why = f"{self._name}, which it rests on, was run again"
                gone = self._decision.invalidated
                lines += [PastPhase(id=one.id, at=end.at, stale=why) for one in gone]
        self._write(*lines)

    def _write(self, *lines: PastPhase, renews_state: bool = True) -> None:
        """Append lines and renew ``state.json``; a failure is logged once and otherwise ignored."""

        def work() -> bool:
            for line in lines:
                ledger_file.append(self._file, line)
            if renews_state:
                ledger_file.write_state(self._file)
            return True

        what = f"writing the ledger {self._file} (HANGCHECK_LEDGER names another)"
        if self._writes:
            # after one failure it is not tried again, as each may take 2 s
            self._writes = bool(attempt(what, within, WRITE_LIMIT_S, work))

    def _seconds(self) -> float:
        return round(time.monotonic() - self._began_s, 3)


def _absolute(paths: Paths) -> tuple[str, ...]:
    found = []
    for path in [paths] if isinstance(paths, (str, os.PathLike)) else paths:
        named = os.fspath(path)
        if "://" not in named:
            with suppress(OSError):  # the working folder was removed
                named = os.path.abspath(named)  # noqa: PTH100
        found.append(named)
    return tuple(found)


def _look(path: str) -> Fingerprint:
    try:
        return within(LOOK_LIMIT_S, partial(ledger_file.fingerprint, path))
    except NoAnswer as error:
        return Fingerprint(path=path, how=f"not read: {error}")


def _look_around() -> ledger_file.Place:
    """Describe this process; about 20 ms, or 0.3 s with GPUs. Each step has a time limit."""
    # git takes no lock of the repository, and looks at no file that it does not track
    git = ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
    commit = ""
    with suppress(OSError, ChildLate):
        ended = answer_of(git, GIT_LIMIT_S, {**os.environ, "GIT_OPTIONAL_LOCKS": "0"})
        commit = ended.stdout.decode(errors="replace").strip()
    stat = read_process_stat(os.getpid())
    return ledger_file.Place(
        host=os.uname().nodename,
        pid=os.getpid(),
        started_ticks=stat.started_ticks if stat is not None else 0,
        ranks=identify(os.environ).world_size or 1,
        gpus=gpu_names(GPU_LIMIT_S),
        commit=commit,
        command=show_command(sys.orig_argv),
    )
