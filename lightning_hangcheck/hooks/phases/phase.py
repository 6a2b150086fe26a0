"""A part of a script's work, kept in the ledger: how long, where, from what, how well."""

from __future__ import annotations

import math
import os
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, get_args

from msgspec.structs import replace

from lightning_hangcheck import log
from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.hooks.phases.choice import Word, agree
from lightning_hangcheck.hooks.phases.scribe import Scribe
from lightning_hangcheck.hooks.phases.surroundings import look_around
from lightning_hangcheck.hooks.pretrained.attempt import attempt
from lightning_hangcheck.hooks.pretrained.offloading import offloaded_so_far
from lightning_hangcheck.identity import identify
from lightning_hangcheck.ledger.book import (
    Begun,
    Discarded,
    Ended,
    Fingerprint,
    Measured,
    Reused,
    fingerprint,
)
from lightning_hangcheck.ledger.story import (
    GOOD,
    POOR,
    Decision,
    IfDone,
    decide,
    stale_in_words,
)
from lightning_hangcheck.recorder.announcer import describe_exception
from lightning_hangcheck.recorder.lifecycle import current
from lightning_hangcheck.text.moments import utc_now
from lightning_hangcheck.text.plain_text import one_line
from lightning_hangcheck.time_limit import NoAnswer, within

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from lightning_hangcheck.ledger.story import PhaseStory

    Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

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
