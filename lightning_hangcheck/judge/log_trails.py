"""What hangcheck's own console lines tell where nothing else is left: where each rank was last.

A line tells what was said, not what is: a rank that is silent may work. Only this is proof: a rank
is inside a call that it announced, while others are through it and wait in a later one.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck.judge.log_book import finding, said_by
from lightning_hangcheck.judge.wording import name_ranks
from lightning_hangcheck.model.log_facts import Section, Trail, seconds
from lightning_hangcheck.model.slugs import Cause, VerdictKind, phase_of_name, words_of
from lightning_hangcheck.text.redaction import redact_text
from lightning_hangcheck.text.shown import seconds_in_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lightning_hangcheck.judge.log_book import LogBook, LogFinding

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


def held_in_a_call(book: LogBook) -> LogFinding | None:
    """Ranks that are in an announced call while all others wait in a later one."""
    trails = list(book.trails.values())
    for call in sorted({_place(one) for one in trails if one.inside}):
        held = [one for one in trails if _place(one) == call]
        others = [one for one in trails if _place(one) != call]
        places = {one.inside[-1].name if one.inside else "" for one in others}
        if len(places) != 1 or not _meets(place := places.pop()):
            continue
        section = held[0].inside[-1]
        if not all(_is_past(one, section, held) for one in others):
            continue
        who, waiting = [one.rank for one in held], [one.rank for one in others]
        text = f"{name_ranks(who)} began {_shown(section.name)} and did not come back from it,"
        text += f" while {name_ranks(waiting)} waited in {_shown(place)}."
        cause = CAUSES.get(phase_of_name(section.name) or "", "rank_stalled")
        waits_in = f"in {_shown(place)}"
        return _told(
            book, "hang", cause, text, section.name, who, victims=waiting, waits_in=waits_in
        )
    return None


def _place(trail: Trail) -> tuple[str, int]:
    return (trail.inside[-1].name, trail.inside[-1].times) if trail.inside else ("", 0)


def _is_past(other: Trail, section: Section, held: Sequence[Trail]) -> bool:
    """Whether a rank waits in a call that it began after ``section``, and ``held`` did not.

    Of a rank that never announced ``section``, which one rank alone may have to call, that shows
    only where nobody meets inside it.
    """
    waits = other.inside[-1]
    came = max(
        (one.times for each in held for one in (*each.inside, *each.returned)
         if one.name == waits.name), default=0)  # fmt: skip
    through = next((one for one in other.returned if one.name == section.name), None)
    if came >= waits.times:
        return False
    if through is None:
        return not _meets(section.name) and all(one.name != section.name for one in other.inside)
    return through.times >= section.times and waits.line > through.line


def stopped_earlier(book: LogBook) -> LogFinding | None:
    """Who came less far than the others, fell silent first, or came last: a guess each time."""
    trails = list(book.trails.values())
    if not trails or all(one.checkpoint == TRAINING_FINISHED and not one.inside for one in trails):
        return None
    least = min(one.checkpoint for one in trails)
    behind = [one for one in trails if one.checkpoint == least]
    if len(behind) < len(trails):
        furthest = max(trails, key=lambda one: one.checkpoint)
        return _behind(book, trails, behind, _checkpoint(behind[0]), _checkpoint(furthest))
    if told := _in_calls(book, trails):
        return told
    if book.of("finished"):
        return None
    steps = [one.step for one in trails if one.step is not None]
    if len(set(steps)) > 1 and len(steps) == len(trails):
        behind = [one for one in trails if one.step == min(steps)]
        return _behind(book, trails, behind, f"step {min(steps)}", f"step {max(steps)}")
    return _apart(book, trails) or _silent(book)


def _checkpoint(trail: Trail) -> str:
    passed = f"CHECKPOINT {trail.checkpoint}: {_shown(trail.passed)}"
    return passed if trail.checkpoint else "no checkpoint"


def _behind(
    book: LogBook, trails: Sequence[Trail], behind: Sequence[Trail], at: str, furthest: str
) -> LogFinding:
    """Tell how far those came that came least far, and what they had begun there."""
    ranks = [one.rank for one in behind]
    calls = {_place(one)[0] for one in behind}
    call = calls.pop() if len(calls) == 1 else ""
    text = f"{name_ranks(ranks)} came to {at}{f' and began {_shown(call)}' if call else ''}, "
    text += (
        f"while {name_ranks({one.rank for one in trails} - set(ranks))} came as far as {furthest}."
    )
    text += f" Look first at what {name_ranks(ranks)} did after that."
    return _guess(book, text, ranks, call)


def _in_calls(book: LogBook, trails: Sequence[Trail]) -> LogFinding | None:
    """All passed the same checkpoint: who is in a call from which nobody, or others, came back."""
    at: dict[tuple[str, int], list[int]] = defaultdict(list)
    for one in trails:
        at[_place(one)].append(one.rank)
    outside = at.pop(("", 0), [])
    names = {name for name, _ in at}
    if not at or (len(at) == 1 and not outside and WHOLE & set(words_of(min(names)))):
        return None
    first = min(at)  # of calls of one name the earliest
    if len(at) == 1 and not outside and len(trails) >= book.world:
        text = f"all ranks began {_shown(first[0])}, and none came back from it."
        if phase_of_name(first[0]) == "trainer_init":
            text += ' Name the strategy, Trainer(strategy="ddp") in place of "auto".'
        return _guess(book, text, (), first[0])
    which = " #{}" if len(at) > len(names) else ""
    told = [
        f"{name_ranks(ranks)} began {_shown(name)}{which.format(times)}"
        " and did not come back from it"
        for (name, times), ranks in sorted(at.items())[:4]
    ]
    told += [f"{name_ranks(outside)} had none such open"] if outside else []
    alone = len(names) == 1 and not (outside and len(at) > 1)
    return _guess(
        book, "; ".join(told) + ".", at[first] if alone else (), first[0] if alone else ""
    )


def _silent(book: LogBook) -> LogFinding | None:
    """Ranks of which there is no line, where all ranks write lines."""
    unseen = book.unseen(book.heard)
    if not unseen or book.world > ALL_PRINT:
        return None
    text = f"no line of {name_ranks(unseen)} is in these logs: either it never came so far, or"
    return _guess(book, f"{text} its log is missing.")


def _apart(book: LogBook, trails: Sequence[Trail]) -> LogFinding | None:
    """Where the last lines lie far apart: who fell silent first, or came last to the same line."""
    moments = _moments(book, trails)
    if len(moments) < 2:
        return None
    order = sorted(moments, key=lambda rank: moments[rank])
    gaps = [moments[later] - moments[earlier] for earlier, later in pairwise(order)]
    widest = gaps.index(max(gaps))
    early, late = order[: widest + 1], order[widest + 1 :]
    if gaps[widest] < A_GAP_S:
        return None
    gap = seconds_in_words(gaps[widest])
    if len({book.words[rank].text for rank in order}) == 1:
        text = f"all said the same last, {name_ranks(late)} {gap} after {name_ranks(early)}."
        return _guess(book, f"{text} Look first at what {name_ranks(late)} did before it.", late)
    text = f"{name_ranks(early)} fell silent first, {gap} before {name_ranks(late)}."
    return _guess(book, text, early if len(early) <= len(late) else ())


def _moments(book: LogBook, trails: Sequence[Trail]) -> dict[int, float]:
    """When each rank wrote its last line, over midnight too; nothing where clocks do not tell."""
    times = {one.rank: one.when for one in trails}
    if not book.clocks_agree or "" in times.values() or len({" " in t for t in times.values()}) > 1:
        return {}
    found = {rank: seconds(when) for rank, when in times.items()}
    newest = max(found.values())
    return {rank: at + DAY_S * (newest - at > DAY_S / 2) for rank, at in found.items()}


def _guess(book: LogBook, text: str, ranks: Iterable[int] = (), call: str = "") -> LogFinding:
    cause = CAUSES.get(phase_of_name(call) or "", "unknown") if call else "unknown"
    return _told(book, "suspect", cause, text, call, guessed=ranks)


def _told(
    book: LogBook,
    verdict: VerdictKind,
    cause: Cause,
    text: str,
    call: str,
    culprits: Iterable[int] = (),
    guessed: Iterable[int] = (),
    victims: Iterable[int] = (),
    waits_in: str = "in a collective",
) -> LogFinding:
    """Tell it with the newest lines of those that it is about, and how the job was ended."""
    ends = book.of("cancelled")
    if ends:
        text += f" The job was ended from outside: {ends[0].error.lower() or 'cancelled'}."
    culprits, guessed = tuple(sorted(culprits)), tuple(sorted(guessed))
    words = said_by(book, dict.fromkeys([*culprits, *guessed, *book.trails]))[:4]
    made = finding(
        book,
        verdict,
        cause,
        text,
        [*words, *ends[:1]],
        culprits,
        guessed=guessed,
        victims=victims,
    )
    aspect = "" if book.unseen(book.heard) else "heard"  # nobody's log is missing
    if phase_of_name(call) == "logger_init":
        aspect = "wandb" if "wandb" in call.lower() else "own"
    return replace(made, waits_in=waits_in, aspect=aspect)


def _meets(name: str) -> bool:
    return bool(MEETINGS & set(words_of(name)))


def _shown(text: str) -> str:
    return redact_text(text)[:80]
