"""What hangcheck's own console lines tell where nothing else is left: where each rank was last.

A line tells what was said, not what is: a rank that is silent may work. Only this is proof: a rank
is inside a call that it announced, while others are through it and wait in a later one.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING

from lightning_hangcheck.judge.wording import name_ranks
from lightning_hangcheck.model.left_behind import Section, Trail, seconds
from lightning_hangcheck.model.slugs import Cause, VerdictKind, phase_of_name, words_of
from lightning_hangcheck.text.redaction import redact_text
from lightning_hangcheck.text.shown import seconds_in_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lightning_hangcheck.judge.log_book import LeftFinding, LogBook

ALL_PRINT = 16
"""In larger jobs only rank 0 and ranks in trouble write lines."""
TRAINING_FINISHED = 12
"""The last of the contract's checkpoints."""
A_GAP_S = 3.0
"""Ranks that go on together write their last lines nearer than that."""
DAY_S = 86_400.0
MEETINGS = {
    *("barrier", "barriers", "wait", "sync", "synchronize", "rendezvous", "broadcast", "scatter"),
    *("reduce", "gather", "allreduce", "allgather", "trainer", "fit", "meet"),
}
"""In names of calls that end on no rank before the others have come."""
WHOLE = {"fit", "train", "training", "run", "main", "job", "test", "validate", "predict"}
"""In names of calls that ranks are in for as long as all is well."""
CAUSES: dict[str, Cause] = {
    "logger_init": "logger_init",
    "rendezvous": "rendezvous",
    "model_load": "model_load",
    "tokenizer": "model_load",
    "checkpoint_save": "checkpoint_io",
}
"""By phase of the call in which a rank is."""


def held_in_a_call(book: LogBook) -> LeftFinding | None:
    """Ranks that are in an announced call while all others wait in a later one."""
    trails = list(book.trails.values())
    for call in sorted({_place(trail) for trail in trails if trail.inside}):
        held = [trail for trail in trails if _place(trail) == call]
        others = [trail for trail in trails if _place(trail) != call]
        places = {_place(trail)[0] for trail in others}
        if len(places) != 1 or not _meets(place := places.pop()):
            continue
        name = call[0]
        if not all(_is_past(trail, held[0].inside[-1], held) for trail in others):
            continue
        who, waiting = [trail.rank for trail in held], [trail.rank for trail in others]
        text = (
            f"{name_ranks(who)} began {_shown(name)} and did not come back from it, while "
            f"{name_ranks(waiting)} waited in {_shown(place)}."
        )
        return _told(book, text, call=name, culprits=who, victims=waiting,
                     waits_in=f"in {_shown(place)}")  # fmt: skip
    return None


def _place(trail: Trail) -> tuple[str, int]:
    return (trail.inside[-1].name, trail.inside[-1].times) if trail.inside else ("", 0)


def _is_past(other: Trail, section: Section, held: Sequence[Trail]) -> bool:
    """Whether a rank waits in a call that it began after ``section``, and ``held`` did not.

    Of a rank that never announced ``section``, which one rank alone may have to call, that shows
    only where nobody meets inside it.
    """
    waits = other.inside[-1]
    passed = [one for each in held for one in (*each.inside, *each.returned)]
    if any(one.name == waits.name and one.times >= waits.times for one in passed):
        return False
    through = next((one for one in other.returned if one.name == section.name), None)
    if through is None:
        return not _meets(section.name) and all(one.name != section.name for one in other.inside)
    return through.times >= section.times and waits.line > through.line


def stopped_earlier(book: LogBook) -> LeftFinding | None:
    """Who came less far than the others, fell silent first, or came last: a guess each time."""
    trails = list(book.trails.values())
    if not trails or all(one.checkpoint == TRAINING_FINISHED and not one.inside for one in trails):
        return None

    def checkpoint(trail: Trail) -> str:
        passed = f"CHECKPOINT {trail.checkpoint}: {_shown(trail.passed)}"
        return passed if trail.checkpoint else "no checkpoint"

    least, most = (choose(trails, key=lambda one: one.checkpoint) for choose in (min, max))
    if least.checkpoint < most.checkpoint:
        late = [one for one in trails if one.checkpoint == least.checkpoint]
        return _behind(book, late, checkpoint(least), checkpoint(most))
    if finding := _in_calls(book, trails):
        return finding
    if book.of("finished"):
        return None
    steps = [one.step for one in trails if one.step is not None]
    if len(set(steps)) > 1 and len(steps) == len(trails):
        late = [one for one in trails if one.step == min(steps)]
        return _behind(book, late, f"step {min(steps)}", f"step {max(steps)}")
    if finding := _silent_first(book, trails):
        return finding
    unseen = book.unseen(book.heard)
    if not unseen or book.world > ALL_PRINT:
        return None
    text = f"no line of {name_ranks(unseen)} is in these logs: either it never came so far, or"
    return _told(book, f"{text} its log is missing.")


def _behind(book: LogBook, late: Sequence[Trail], at: str, furthest: str) -> LeftFinding:
    """Tell how far those came that came least far, and what they had begun there."""
    ranks = [trail.rank for trail in late]
    who = name_ranks(ranks)
    calls = {_place(trail)[0] for trail in late}
    call = calls.pop() if len(calls) == 1 else ""
    text = (
        f"{who} came to {at}{f' and began {_shown(call)}' if call else ''}, while "
        f"{name_ranks(set(book.trails) - set(ranks))} came as far as {furthest}. Look first at "
        f"what {who} did after that."
    )
    return _told(book, text, ranks, call)


def _in_calls(book: LogBook, trails: Sequence[Trail]) -> LeftFinding | None:
    """All passed the same checkpoint: who is in a call from which nobody, or others, came back."""
    at: dict[tuple[str, int], list[int]] = defaultdict(list)
    for trail in trails:
        at[_place(trail)].append(trail.rank)
    outside = at.pop(("", 0), [])
    names = {name for name, _ in at}
    together = len(at) == 1 and not outside
    if not at or (together and WHOLE & set(words_of(min(names)))):
        return None
    first = min(at)  # of calls of one name the earliest
    if together and len(trails) >= book.world:
        text = f"all ranks began {_shown(first[0])}, and none came back from it."
        if phase_of_name(first[0]) == "trainer_init":
            text += ' Name the strategy, Trainer(strategy="ddp") in place of "auto".'
        return _told(book, text, (), first[0])
    which = " #{}" if len(at) > len(names) else ""
    told = [
        f"{name_ranks(ranks)} began {_shown(name)}{which.format(times)}"
        " and did not come back from it"
        for (name, times), ranks in sorted(at.items())[:4]
    ]
    told += [f"{name_ranks(outside)} had none such open"] if outside else []
    alone = len(names) == 1 and not (outside and len(at) > 1)
    who, call = (at[first], first[0]) if alone else ([], "")
    return _told(book, f"{'; '.join(told)}.", who, call)


def _silent_first(book: LogBook, trails: Sequence[Trail]) -> LeftFinding | None:
    """Where the last lines lie far apart: who fell silent first, or came last to the same line."""
    times = {trail.rank: trail.when for trail in trails}
    if not book.clocks_agree or "" in times.values() or len({" " in t for t in times.values()}) > 1:
        return None
    moments = {rank: seconds(when) for rank, when in times.items()}
    newest = max(moments.values())  # over midnight, too
    moments = {rank: at + DAY_S * (newest - at > DAY_S / 2) for rank, at in moments.items()}
    order = sorted(moments, key=lambda rank: moments[rank])
    gaps = [moments[later] - moments[earlier] for earlier, later in pairwise(order)]
    if max(gaps, default=0) < A_GAP_S:
        return None
    widest = gaps.index(max(gaps))
    early, late = order[: widest + 1], order[widest + 1 :]
    gap = seconds_in_words(gaps[widest])
    if len({book.words[rank].text for rank in order}) == 1:
        text = f"all said the same last, {name_ranks(late)} {gap} after {name_ranks(early)}."
        return _told(book, f"{text} Look first at what {name_ranks(late)} did before it.", late)
    text = f"{name_ranks(early)} fell silent first, {gap} before {name_ranks(late)}."
    return _told(book, text, early if len(early) <= len(late) else ())


def _told(
    book: LogBook,
    text: str,
    guessed: Iterable[int] = (),
    call: str = "",
    *,
    culprits: Iterable[int] = (),
    victims: Iterable[int] = (),
    waits_in: str = "",
) -> LeftFinding:
    """Tell it with the newest lines of those that it is about, and how the job was ended.

    Without culprits it is a guess. The call is the one in which they are, where there is one.
    """
    ends = book.of("cancelled")
    if ends:
        text += f" The job was ended from outside: {ends[0].error.lower() or 'cancelled'}."
    words = book.said_by(dict.fromkeys([*sorted(culprits), *sorted(guessed), *book.trails]))[:4]
    phase = phase_of_name(call) if call else ""
    cause = CAUSES.get(phase or "", "rank_stalled" if culprits else "unknown")
    aspect = "" if book.unseen(book.heard) else "heard"  # nobody's log is missing
    if phase == "logger_init":
        aspect = "wandb" if "wandb" in call.lower() else "own"
    kind: VerdictKind = "hang" if culprits else "suspect"
    return book.finding(kind, cause, text, [*words, *ends[:1]], culprits, guessed=guessed,
                        victims=victims, waits_in=waits_in, aspect=aspect)  # fmt: skip


def _meets(name: str) -> bool:
    return bool(MEETINGS & set(words_of(name)))


def _shown(text: str) -> str:
    return redact_text(text)[:80]
