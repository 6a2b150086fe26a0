"""A part of a script's work, kept in the ledger: how long, where, from what, how well."""

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
from msgspec.structs import replace

from lightning_hangcheck import log
from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.hooks.models import offloaded_so_far
from lightning_hangcheck.hooks.never_raise import attempt
from lightning_hangcheck.hooks.rendezvous import find_peer_group, join_rendezvous
from lightning_hangcheck.identity import identify
from lightning_hangcheck.ledger import book
from lightning_hangcheck.ledger.decision import (
    GOOD,
    POOR,
    Decision,
    IfDone,
    PhaseDone,
    decide,
    question,
    stale_in_words,
)
from lightning_hangcheck.ledger.fingerprints import Fingerprint, fingerprint
from lightning_hangcheck.ledger.prices import Prices, read_prices
from lightning_hangcheck.ledger.records import Begun, Discarded, Ended, Measured, Place, Reused
from lightning_hangcheck.ledger.story import Story, tell
from lightning_hangcheck.look.gpu import gpu_names
from lightning_hangcheck.look.programs import ChildLate, answer_of
from lightning_hangcheck.machine.process_stat import read_process_stat
from lightning_hangcheck.model.codec import encode
from lightning_hangcheck.model.decoders import json_decoder
from lightning_hangcheck.recorder.announcer import describe_exception
from lightning_hangcheck.recorder.lifecycle import current
from lightning_hangcheck.text.moments import utc_now
from lightning_hangcheck.text.plain_text import one_line
from lightning_hangcheck.text.shown_command import show_command
from lightning_hangcheck.time_limit import NoAnswer, within

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType

    from lightning_hangcheck.identity import Identity
    from lightning_hangcheck.ledger.records import AnyLine
    from lightning_hangcheck.ledger.story import PhaseStory
    from lightning_hangcheck.recorder.lifecycle import Recorder
    from lightning_hangcheck.settings import Settings

    Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


GIT_LIMIT_S = 2.0
"""Milliseconds, but for a huge working folder on a network disk."""
GPU_LIMIT_S = 5.0
"""While the driver wakes 8 GPUs it may take a second."""
PROCESSOR = Path("/proc/cpuinfo")


def look_around(identity: Identity) -> Place:
    """Find out where this process is; about 20 ms, or 0.3 s with GPUs.

    Args:
        identity: Of this process.
    """
    stat = read_process_stat(os.getpid())
    commit, dirty = _commit()
    return Place(
        host=os.uname().nodename,
        pid=os.getpid(),
        started_ticks=stat.started_ticks if stat is not None else 0,
        ranks=identity.world_size or 1,
        cpu=_processor(),
        cores=len(os.sched_getaffinity(0)),
        gpus=gpu_names(GPU_LIMIT_S),
        commit=commit,
        dirty=dirty,
        command=show_command(sys.orig_argv),
    )


def _processor() -> str:
    try:
        lines = PROCESSOR.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "")


def _commit() -> tuple[str, bool | None]:
    """The commit of the working folder, and whether tracked files differ from it."""
    commit = _git("rev-parse", "HEAD")
    if commit is None:
        return "", None
    changes = _git("status", "--porcelain", "--untracked-files=no")
    return commit, None if changes is None else bool(changes)


def _git(*words: str) -> str | None:
    """Ask git, without taking a lock of the repository; None where it gives no answer."""
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        ended = answer_of(["git", *words], GIT_LIMIT_S, environment)
    except (OSError, ChildLate):
        return None
    return ended.stdout.decode(errors="replace").strip() if ended.returncode == 0 else None


WRITE_LIMIT_S = 2.0
"""A line is written in microseconds; a network disk that is busy takes a second."""


class Scribe:
    """Keeps one ledger for one process.

    Args:
        named: Its file; None for the one of the working folder.
        writes: Whether this process is the one of its job that writes.
    """

    def __init__(self, named: str | None, *, writes: bool) -> None:
        self._ledger = _find(named)
        self._writes = writes

    def write(self, *lines: AnyLine) -> None:
        """Append lines and renew ``state.json``; what goes wrong is said once, and that is all.

        Storage that gave no answer once is not tried again.
        """
        if not self._writes or not lines:
            return
        try:
            within(WRITE_LIMIT_S, partial(self._write, lines))
        except Exception as error:  # noqa: BLE001 - whatever storage, names and values refuse
            self._writes = not isinstance(error, NoAnswer)
            log.once(
                "ledger",
                f"the ledger {self._ledger} cannot be written ({error}); training goes on; name "
                "one elsewhere: HANGCHECK_LEDGER",
            )

    def story(self) -> Story:
        """Return what the ledger tells so far; nothing where it cannot be read, which is said."""
        try:
            return within(WRITE_LIMIT_S, self._story)
        except Exception as error:  # noqa: BLE001 - as above
            log.once("ledger read", f"what was done before is not known: {error}")
            return Story()

    def _story(self) -> Story:
        return tell(book.read(self._ledger)) if self._ledger.exists() else Story()

    def _write(self, lines: tuple[AnyLine, ...]) -> None:
        for line in lines:
            book.append(self._ledger, line)
        book.write_state(self._ledger, tell(book.read(self._ledger)))


def _find(named: str | None) -> Path:
    try:
        return book.find_ledger(named)
    except OSError:  # the working folder was removed; the first line says that nothing fits there
        return Path(named or book.LEDGER_FILE)


NEEDS_A_PERSON = 3
REUSABLE = "HANGCHECK_IF_DONE=reuse or HANGCHECK_IF_DONE=rerun answers it"
NOT_REUSABLE = "HANGCHECK_IF_DONE=rerun runs all of them, HANGCHECK_IF_DONE=reuse only this one"


class Word(msgspec.Struct, frozen=True):
    """What the first rank decided, for all.

    Attributes:
        act: ``stop``: a person must be asked, or said so. ``refuse``: it must not run twice.
        remedy: Of a refusal.
    """

    act: Literal["run", "reuse", "stop", "refuse"]
    why: str
    remedy: str = ""


def agree(name: str, recorder: Recorder, time_limit: float, decide: Callable[[], Decision]) -> Word:
    """Let the first rank decide, and every rank do the same.

    Args:
        name: Of the phase.
        recorder: Of this process.
        time_limit: Seconds that ranks wait for each other.
        decide: Asked of the first rank only.

    Returns:
        ``run`` or ``reuse``, with the reason. All run where ranks cannot meet, or where it cannot
        be decided: one rank that left the work out would leave the others waiting.

    Raises:
        PhaseDone: On every rank: it must not run twice.
        SystemExit: On every rank, code 3: a person must be asked, and nobody is there to answer.
        MeetingFailed: Ranks did not come in time.
    """
    peers = find_peer_group(recorder)
    if peers is None and (recorder.identity.world_size or 1) > 1:
        return Word("run", "the ranks cannot meet to agree")
    first = peers is None or peers.index == 0
    payload = b""
    if first:
        alone = peers is None or (peers.size or 1) == 1
        decided = partial(_decided, decide, recorder.settings, alone=alone)
        payload = attempt(f"deciding about phase {name}", decided) or UNDECIDED
    if peers is not None:
        payload = join_rendezvous(f"phase {name}", time_limit, payload, peers).get(0, payload)
    word = json_decoder(Word).decode(payload)
    if word.act == "refuse":
        raise PhaseDone(word.why, word.remedy)
    if word.act == "stop":
        if first:
            sys.stderr.write(word.why)
        raise SystemExit(NEEDS_A_PERSON)
    return word


UNDECIDED = msgspec.json.encode(Word("run", "it could not be decided"))


def _decided(decide: Callable[[], Decision], settings: Settings, *, alone: bool) -> bytes:
    return encode(_word(decide, settings, alone=alone))


def _word(decide: Callable[[], Decision], settings: Settings, *, alone: bool) -> Word:
    try:
        decision = decide()
    except PhaseDone as error:
        return Word("refuse", str(error.args[0]), error.remedy)
    if decision.act != "ask":
        return Word(decision.act, decision.why)
    if settings.if_done != "ask":
        reuses = settings.if_done == "reuse" and decision.reusable
        why = f"{decision.why}; HANGCHECK_IF_DONE={settings.if_done}"
        return Word("reuse" if reuses else "run", why)
    prices = attempt("reading HANGCHECK_PRICE", partial(read_prices, [settings.price or ""]))
    asked = question(decision, prices or Prices())
    if alone and sys.stdin is not None and sys.stdin.isatty():
        return _ask(asked, decision)
    answers = REUSABLE if decision.reusable else NOT_REUSABLE
    return Word("stop", f"{asked}\n  nobody is here to answer; {answers}\n")


def _ask(asked: str, decision: Decision) -> Word:
    """Ask the person at the terminal until one of the words comes; no answer is a stop."""
    sys.stderr.write(f"{asked}\n")
    prompt = "reuse, rerun or stop? " if decision.reusable else "rerun or stop? "
    for answer in iter(partial(_answer, prompt), None):
        why = f"{decision.why}; a person said {answer}"
        if answer == "rerun":
            return Word("run", why)
        if answer == "reuse" and decision.reusable:
            return Word("reuse", why)
        if answer == "stop":
            break
    return Word("stop", "")


def _answer(prompt: str) -> str | None:
    sys.stderr.write(prompt)
    sys.stderr.flush()
    line = sys.stdin.readline()
    return line.strip().lower() if line else None


LOOK_LIMIT_S = 30.0
"""For the fingerprint of one file or folder; at most 64 MiB are read."""
LONGEST_ERROR = 500
"""Characters of the error that a phase ended by."""


class phase:  # noqa: N801 - called like a function, as `section` is
    """Keep a part of the work in the ledger.

    Example:
        >>> with phase("train", inputs=["data"], outputs=["last.ckpt"], if_done="reuse") as train:
        ...     if train.needed:
        ...         train.metric("val_acc", fit())

    Python cannot skip the body of a ``with``: ask `needed` in it. Only rank 0 writes. Nothing is
    deleted or overwritten, and a ledger that cannot be written never stops training.

    Args:
        name: The same one each time.
        inputs: Files and folders that it is made from.
        outputs: Files and folders that it makes; looked at when it ends.
        metric: Name of the metric that says whether it went well, a share that is better when it is
            larger; by default the only one.
        if_done: What to do where it is done already: ``rerun`` it, ``reuse`` what it made if inputs
            and outputs are as they were, ``error``, or ``ask``: reuse where the metric is good, run
            where it is poor, else ask. With any but ``rerun`` the ranks meet, and rank 0 decides.
            With ``ask`` a person is also asked before a phase runs again that this one rests on.
        good: From here on the metric is good.
        poor: Below this it is poor.

    Raises:
        BadUsage: ``if_done`` is another word, or the thresholds are the wrong way round.
        PhaseDone: It is done, and ``if_done`` is ``error``.
        MeetingFailed: Ranks did not come to the same phase in time.
        SystemExit: Code 3: a person must be asked, and none is at a terminal.
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
        _check(if_done, good, poor)
        self._name = one_line(str(name))
        self._input_paths, self._output_paths = _absolute(inputs), _absolute(outputs)
        self._deciding = metric or ""
        self._if_done, self._thresholds = if_done, (good, poor)
        self._id = os.urandom(4).hex()
        self._metrics: dict[str, float] = {}
        self._began_ns, self._began_cpu_s = 0, 0.0
        self._recorder = current()
        identity = identify(os.environ)
        self._writes = not self._recorder.settings.disable and not identity.rank
        self._identity = identity
        self._scribe = Scribe(self._recorder.settings.ledger, writes=self._writes)
        self._decision = Decision(act="run", why="")
        self._inputs: tuple[Fingerprint, ...] = ()
        self._needed = True

    @property
    def needed(self) -> bool:
        """Whether it must run; False where what it made before is reused."""
        return self._needed

    @property
    def metrics(self) -> dict[str, float]:
        """What was told so far, or what was recorded where it is reused."""
        return dict(self._metrics)

    def metric(self, name: str, value: float) -> None:
        """Keep a metric, at once: a phase that is killed has it. Never raises.

        Args:
            name: For example ``"val_acc"``.
            value: A finite number, or what `float` makes one of.
        """
        try:
            number = float(value)
        except Exception:  # noqa: BLE001 - what a user hands in may refuse in any way
            number = math.nan
        if not math.isfinite(number):
            log.once(f"metric {name}", f"metric {name} is no finite number; it is not kept")
            return
        self._metrics[str(name)] = number
        if self._needed:
            after_s = self._seconds()
            self._scribe.write(
                Measured(id=self._id, at=utc_now(), after_s=after_s, metrics={str(name): number})
            )

    def __enter__(self) -> phase:
        if not self._recorder.settings.disable:
            self._choose()
            attempt(f"the beginning of phase {self._name} in the ledger", self._begin)
        self._began_ns, self._began_cpu_s = time.monotonic_ns(), _cpu_s()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._needed and self._writes:
            attempt(f"the end of phase {self._name} in the ledger", partial(self._end, error))

    def _end(self, error: BaseException | None) -> None:
        said = _in_one_line(error)
        ended = Ended(
            id=self._id,
            at=utc_now(),
            duration_s=self._seconds(),
            cpu_s=round(_cpu_s() - self._began_cpu_s, 3),
            error=said,
            metrics=self._metrics,
            outputs=() if said else _look_at(self._output_paths),
            offloaded=offloaded_so_far(),
        )
        self._scribe.write(ended, *self._discarded(ended))

    def _choose(self) -> None:
        """Do what all ranks agree on; this alone may stop training, as it was asked to."""
        if self._if_done == "rerun" and (self._identity.world_size or 1) > 1:
            # ranks need not meet, and the phase may be on one of them only: nobody is asked
            attempt(f"deciding about phase {self._name}", self._weigh)
            self._act(Word("run", "its script runs it each time"))
            return
        limit = self._recorder.settings.meeting_timeout
        limit += LOOK_LIMIT_S * (len(self._input_paths) + len(self._output_paths))
        self._act(agree(self._name, self._recorder, limit, self._weigh))

    def _begin(self) -> None:
        if not self._writes or not self._needed:
            return
        self._scribe.write(
            Begun(
                id=self._id,
                at=utc_now(),
                phase=self._name,
                place=look_around(self._identity),
                deciding=self._deciding,
                ask_from=self._thresholds[1] if self._if_done == "ask" else None,
                # not looked at yet where ranks could not meet, or nothing could be decided
                inputs=self._inputs or _look_at(self._input_paths),
            )
        )

    def _weigh(self) -> Decision:
        if not self._writes:
            return self._decision
        self._inputs = _look_at(self._input_paths)
        self._decision = decide(
            self._scribe.story(),
            self._name,
            self._if_done,
            self._inputs,
            self._output_paths,
            self._thresholds,
            _look,
        )
        return self._decision

    def _act(self, word: Word) -> None:
        """Do what was agreed, and say why once."""
        earlier = self._decision.earlier
        self._needed = word.act == "run"
        self._decision = replace(self._decision, why=word.why)
        if not self._writes or earlier is None:
            return
        stale = stale_in_words(self._decision)
        if self._needed and (stale or self._if_done != "rerun"):
            log.once(f"phase {self._id}", f"phase {self._name} runs again: {word.why}{stale}")
        if not self._needed:
            does = f"is reused, made {earlier.begun_at}: {word.why}"
            log.once(f"phase {self._id}", f"phase {self._name} {does}")
            self._metrics = dict(earlier.metrics)
            self._scribe.write(Reused(id=earlier.id, at=utc_now(), phase=self._name, why=word.why))

    def _discarded(self, ended: Ended) -> tuple[Discarded, ...]:
        """What a phase that ended well takes the place of; what rests on it, if it differs."""
        earlier = self._decision.earlier
        if earlier is None or ended.error:
            return ()
        rest = () if earlier.made_same(ended.outputs) else self._decision.invalidated
        left = f"{self._name}, which it rests on, was run again"
        return (
            self._discard(earlier, f"it was run again: {self._decision.why}"),
            *(self._discard(one, left) for one in rest),
        )

    def _discard(self, story: PhaseStory, why: str) -> Discarded:
        return Discarded(id=story.id, at=utc_now(), phase=story.name, by=self._id, why=why)

    def _seconds(self) -> float:
        return round((time.monotonic_ns() - self._began_ns) / 1e9, 3)


def _check(if_done: str, good: float, poor: float) -> None:
    if if_done not in get_args(IfDone):
        raise BadUsage(
            f"if_done={if_done!r} is none of rerun, reuse, ask, error", 'write if_done="reuse"'
        )
    if not poor <= good:
        raise BadUsage(f"poor={poor:g} is above good={good:g}", f"write good={GOOD}, poor={POOR}")


def _absolute(paths: Paths) -> tuple[str, ...]:
    several = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    return tuple(_from_root(os.fspath(path)) for path in several)


def _from_root(path: str) -> str:
    if "://" not in path:
        with suppress(OSError):  # the working folder was removed
            return os.path.abspath(path)  # noqa: PTH100
    return path


def _look_at(paths: Iterable[str]) -> tuple[Fingerprint, ...]:
    return tuple(_look(path) for path in paths)


def _look(path: str) -> Fingerprint:
    """Take a fingerprint, of storage that answers."""
    try:
        return within(LOOK_LIMIT_S, partial(fingerprint, path))
    except NoAnswer as error:
        return Fingerprint(path=path, how=f"not read: {error}")


def _cpu_s() -> float:
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def _in_one_line(error: BaseException | None) -> str:
    """Leaving with SystemExit(0) is ending well."""
    if error is None or (isinstance(error, SystemExit) and not error.code):
        return ""
    return describe_exception(error, LONGEST_ERROR)
