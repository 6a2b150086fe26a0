"""The scenes: what each provokes, and what a program must have for it to take place."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, get_args

from msgspec import Struct

from lightning_hangcheck.model.rehearsal import Note, SceneName

if TYPE_CHECKING:
    from collections.abc import Iterable

AS_IT_IS: SceneName = "as-it-is"


class Facts(Struct, frozen=True, kw_only=True):
    """What the ranks noted while the command ran as it is.

    Attributes:
        world: Ranks that met in a process group.
        loaders: DataLoaders that any rank used.
        uneven: Keys of loaders, of the last rank, that may give it fewer batches than others.
        workers: Numbers of DataLoader workers.
    """

    world: int = 0
    loaders: int = 0
    uneven: tuple[str, ...] = ()
    workers: frozenset[str] = frozenset()
    kinds: frozenset[str] = frozenset()
    sigterm: str = ""
    stepped: bool = False
    changed: tuple[str, ...] = ()


def facts_of(notes: Iterable[Note], ranks: int) -> Facts:
    """Put together what the ranks noted."""
    of_kind: dict[str, list[Note]] = defaultdict(list)
    for note in notes:
        of_kind[note.kind].append(note)
    worlds = [int(note.text) for note in of_kind["group"] if note.text.isdecimal()]
    return Facts(
        world=max(worlds, default=0),
        loaders=len(of_kind["loader"]),
        uneven=_uneven(of_kind["loader"], ranks),
        workers=frozenset(note.text for note in of_kind["workers"]),
        kinds=frozenset(of_kind),
        sigterm=max((note.text for note in of_kind["step"]), default="", key=len),
        stepped=bool(of_kind["step"]),
        changed=tuple(dict.fromkeys(note.text for note in of_kind["changed"])),
    )


def _uneven(loaders: Iterable[Note], ranks: int) -> tuple[str, ...]:
    """Loaders that nothing evens, and whose data is not the same on all ranks."""
    by_rank: dict[int, list[Note]] = defaultdict(list)
    for note in loaders:
        by_rank[note.rank].append(note)
    last = by_rank.pop(ranks - 1, [])
    found = []
    for at, note in enumerate(last):
        others = [notes[at] for notes in by_rank.values() if len(notes) > at]
        differs = any(one.mark != note.mark or one.key != note.key for one in others)
        if not note.shared and differs:
            found.append(note.key)
    return tuple(found)


class Scene(Struct, frozen=True):
    """One scene.

    Attributes:
        title: For people.
        remedy: What to do where it hangs; empty where only the verdict knows.
        missing: Why it cannot take place with a program, in a clause; empty where it can.
    """

    name: SceneName
    title: str
    remedy: str
    missing: Callable[[Facts], str]


def _of_data(facts: Facts) -> str:
    if not facts.loaders:
        made = bool(facts.workers)
        return "no end of its data was seen" if made else "no torch DataLoader was made"
    if not facts.uneven:
        return "every DataLoader gives all ranks the same number of batches"
    return ""


def _of_loss(facts: Facts) -> str:
    return "" if {"loss", "forward"} & facts.kinds else "no loss was seen"


def _of_save(facts: Facts) -> str:
    return "" if "save" in facts.kinds else "nothing was saved in the few batches"


def _of_sigterm(facts: Facts) -> str:
    if not facts.stepped:
        return "no optimizer stepped"
    if facts.sigterm == "Lightning":
        return "only Lightning answers SIGTERM, by a broadcast: send it to all ranks, never to one"
    return "" if facts.sigterm else "nothing of the program answers SIGTERM"


def _of_workers(number: str) -> Callable[[Facts], str]:
    def missing(facts: Facts) -> str:
        if not facts.workers:
            return "no torch DataLoader was made"
        word = "no workers" if number == "0" else "1 worker"
        return f"it has {word} as it is" if facts.workers == {number} else ""

    return missing


_EVEN = (
    "give every rank as many batches: a DistributedSampler, limit_train_batches, or model.join(); "
    "where a rank may have none, let it take part in each collective with zeros"
)
_AGREE = "reduce what this rank decides on over all ranks before any of them acts on it"
SCENES = (
    Scene(AS_IT_IS, "as it is", "", lambda _: ""),
    Scene("fewer-samples", "one rank has fewer samples", _EVEN, _of_data),
    Scene("no-samples", "one rank has no samples", _EVEN, _of_data),
    Scene(
        "smaller-last-batch",
        "the last batch of one rank is smaller",
        "drop_last=True, or pad what is gathered: accelerator.pad_across_processes",
        _of_data,
    ),
    Scene(
        "unusable-batch",
        "one rank meets a batch without a usable sample",
        "draw another sample in the dataset, or reduce over all ranks whether to leave a batch out",
        lambda facts: "" if "collate" in facts.kinds else "its collate function allows no such",
    ),
    Scene("non-finite-loss", "the loss of one rank is not finite", _AGREE, _of_loss),
    Scene(
        "save-fails",
        "a save of rank 0 fails",
        "let the error end the job, or broadcast whether the save went well before others go on",
        _of_save,
    ),
    Scene(
        "save-slow",
        "a save of rank 0 is slow",
        "let all ranks meet in a barrier behind the save, before any of them looks for the file",
        _of_save,
    ),
    Scene("early-stop", "one rank alone wants to stop early", _AGREE, _of_loss),
    Scene("sigterm", "one rank gets SIGTERM", _AGREE, _of_sigterm),
    Scene("no-workers", "no DataLoader workers", "", _of_workers("0")),
    Scene("one-worker", "one DataLoader worker", "", _of_workers("1")),
)
NAMES: tuple[str, ...] = get_args(SceneName)
