"""The scenes: what each provokes, and what a program must have for it to take place."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, get_args

from msgspec import Struct

from lightning_hangcheck.model.rehearsal import Note, NoteKind, SceneName

if TYPE_CHECKING:
    from collections.abc import Iterable

AS_IT_IS: SceneName = "as-it-is"
NAMES: tuple[str, ...] = get_args(SceneName)


class Facts:
    """What the ranks noted while the command ran as it is.

    Attributes:
        world: Ranks that met in a process group.
        uneven: Keys of loaders, of the last rank, that may give it fewer batches than others:
            nothing evens them, and their data is not the same on all ranks.
    """

    def __init__(self, notes: Iterable[Note] = (), ranks: int = 0) -> None:
        self._of_kind: dict[NoteKind, list[Note]] = defaultdict(list)
        for note in notes:
            self._of_kind[note.kind].append(note)
        self.world = max((int(text) for text in self.texts("group") if text.isdecimal()), default=0)
        by_rank: dict[int, list[Note]] = defaultdict(list)
        for note in self._of_kind["loader"]:
            by_rank[note.rank].append(note)
        last, uneven = by_rank.pop(ranks - 1, []), []
        for at, note in enumerate(last):
            others = [notes[at] for notes in by_rank.values() if len(notes) > at]
            differs = any(one.mark != note.mark or one.key != note.key for one in others)
            if not note.shared and differs:
                uneven.append(note.key)
        self.uneven = tuple(uneven)

    def has(self, *kinds: NoteKind) -> bool:
        """Whether something of these kinds was noted."""
        return any(self._of_kind[kind] for kind in kinds)

    def texts(self, kind: NoteKind) -> list[str]:
        """What was said of it, each once."""
        return list(dict.fromkeys(note.text for note in self._of_kind[kind]))


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
    if facts.uneven:
        return ""
    if facts.has("loader"):
        return "every DataLoader gives all ranks the same number of batches"
    made = facts.has("workers")
    return "no end of its data was seen" if made else "no torch DataLoader was made"


def _of_sigterm(facts: Facts) -> str:
    if not facts.has("step"):
        return "no optimizer stepped"
    answers = max(facts.texts("step"), key=len)
    if answers == "Lightning":
        return "only Lightning answers SIGTERM, by a broadcast: send it to all ranks, never to one"
    return "" if answers else "nothing of the program answers SIGTERM"


def _of_workers(number: str) -> Callable[[Facts], str]:
    def missing(facts: Facts) -> str:
        if not facts.has("workers"):
            return "no torch DataLoader was made"
        word = "no workers" if number == "0" else "1 worker"
        return f"it has {word} as it is" if facts.texts("workers") == [number] else ""

    return missing


def _unless(said: str, *kinds: NoteKind) -> Callable[[Facts], str]:
    return lambda facts: "" if facts.has(*kinds) else said


_OF_LOSS = _unless("no loss was seen", "loss", "forward")
_OF_SAVE = _unless("nothing was saved in the few batches", "save")
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
        _unless("its collate function allows no such", "collate"),
    ),
    Scene("non-finite-loss", "the loss of one rank is not finite", _AGREE, _OF_LOSS),
    Scene(
        "save-fails",
        "a save of rank 0 fails",
        "let the error end the job, or broadcast whether the save went well before others go on",
        _OF_SAVE,
    ),
    Scene(
        "save-slow",
        "a save of rank 0 is slow",
        "let all ranks meet in a barrier behind the save, before any of them looks for the file",
        _OF_SAVE,
    ),
    Scene("early-stop", "one rank alone wants to stop early", _AGREE, _OF_LOSS),
    Scene("sigterm", "one rank gets SIGTERM", _AGREE, _of_sigterm),
    Scene("no-workers", "no DataLoader workers", "", _of_workers("0")),
    Scene("one-worker", "one DataLoader worker", "", _of_workers("1")),
)
