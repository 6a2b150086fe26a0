"""Was a rank asked to end, and what became of a job while a hang stood?"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from lightning_hangcheck.diagnosis.process_exit import (
    FROM_OUTSIDE,
    TOLD_TO_END,
    ended_by_served,
    ending_signal,
    left_well,
    lost_a_peer,
)
from lightning_hangcheck.gather.stack_groups import latest_frames
from lightning_hangcheck.model.case import AskedEnd
from lightning_hangcheck.reading.knowledge.frames import meanings
from lightning_hangcheck.reading.last_words import last_words, raised
from lightning_hangcheck.reading.wording import duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.diagnosis.job import JobReading
    from lightning_hangcheck.model.case import Aftermath, RankView


BY_SERVED = "whom its processes serve (as actors serve Ray)"


def asked_by(view: RankView) -> str | None:
    """Say who asked a rank to end, as far as it shows itself; as in `AskedEnd`.

    Its last words, the signal that ended it, and a signal handler on its stack tell.
    """
    words = _by_words(view)
    if words:
        return f"{words} in rank {view.rank}"
    number = _by_signal(view) or _by_handler(view)
    return f"{number} to rank {view.rank}" if number else None


def shown_by(views: Sequence[RankView]) -> str | None:
    """Say who asked a job to end that is still there, as its ranks show; None where none shows it.

    One rank that answers a signal speaks for all: of the others, who wait in native code, none can.
    A rank that a signal ended may be one that the others need: all that are left must show it. And
    where a rank ended by itself, its launcher ends the others for that.
    """
    shown = {view.rank: asked_by(view) for view in views}
    gone = [view for view in views if view.process_exit is not None]
    if any(not (shown[one.rank] or left_well(one) or lost_a_peer(one)) for one in gone):
        return None
    speak = (one for one in views if one.process_exit is None or _by_words(one))
    return next(filter(None, (shown[one.rank] for one in speak)), None)


def asked_end(job: JobReading) -> AskedEnd | None:
    """Return who asked the whole job to end: the launcher's word, or what ranks show at the end.

    What a rank shows does not tell when. A rank that failed by itself is taken to have done so
    before, since launchers end the others for it; and a job that ended well was not ended.
    """
    case = job.case
    if case.asked_end is not None or case.exit_code == 0:
        return case.asked_end
    views = [one.view for one in job.ranks.values()]
    by = next(filter(None, map(asked_by, views)), None)
    if by is None and ended_by_served(views, several_nodes=case.run.nnodes > 1):
        by = BY_SERVED
    return AskedEnd(by=by, failed_before=tuple(job.ranks)) if by is not None else None


def aftermath_sentence(aftermath: Aftermath) -> str:
    """Say what happened after a hang was proven: ``12 s later the job was ended by ...``."""
    return f"{duration(aftermath.after_s)} later {aftermath.text}"


def _by_words(view: RankView) -> str:
    """One that caught the exception and went on shows no way out."""
    words = last_words(view)
    leaving = view.process_exit is not None or raised(view) or _tears_down(view)
    told = leaving and words.startswith(TOLD_TO_END)
    return words.partition(":")[0].partition(" ")[0] if told else ""


def _tears_down(view: RankView) -> bool:
    return view.beat is not None and view.beat.phase == "teardown"


def _by_signal(view: RankView) -> str:
    number = ending_signal(view)
    return signal.Signals(number).name if number in FROM_OUTSIDE and number is not None else ""


def _by_handler(view: RankView) -> str:
    own = view.own_process
    frames = latest_frames(own) if own is not None and view.process_exit is None else ()
    rules = (rule for frame in frames for rule in meanings(frame.function, frame.file))
    return next((rule.handles for rule in rules if rule.handles), "")
