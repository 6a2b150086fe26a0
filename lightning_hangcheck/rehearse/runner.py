"""Plays the scenes in turn, each under `hangcheck run` with short patience and a limit."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec import Struct

from lightning_hangcheck.files.safe import EVIDENCE_BYTES, read_end_owned, read_owned
from lightning_hangcheck.model.rehearsal import GLOO, VARIABLE, Note, Part, SceneName
from lightning_hangcheck.model.verdict import Verdict
from lightning_hangcheck.rehearse.launching import CPU_ENVIRONMENT, CannotRehearse, on_cpu_ranks
from lightning_hangcheck.rehearse.scenes import AS_IT_IS, SCENES, Facts, Scene, facts_of
from lightning_hangcheck.rundir import RunFolder
from lightning_hangcheck.smoke.sequence import Outcome, Trial, run_trial

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

Result = Literal["passed", "hung", "crashed-alike", "crashed-on-one", "unclear", "skipped"]
SHORT_PATIENCE = {
    "HANGCHECK_IDLE_AFTER": "15",
    "HANGCHECK_STALL_TIMEOUT": "60",
    "HANGCHECK_BUSY_FLOOR": "60",
    "HANGCHECK_ABORT_GRACE": "3",
}
"""Where the environment does not say otherwise; minutes are no use where a step takes moments."""
SLOWER, LEAST_LIMIT_S = 4.0, 120.0
"""A scene may take so many times as long as the command did as it is, and a minute."""
GLOO_MISMATCH = b"Received data size doesn't match expected size"
OTHER_SIZES = (
    "the ranks met in collectives of different sizes: gloo notices that and ends them, "
    "with NCCL they would hang or mix up the data"
)
NO_BATCHES = "let it read its batches from a DataLoader, or give it an option that makes it short"


class Played(Struct, frozen=True, kw_only=True):
    """What came of one scene.

    Attributes:
        why: Of a scene that did not pass: what is known of it, in a sentence.
        remedy: Of one that hung, what to do about this scene.
        seconds: Until it ended.
        verdict: Of one that hung until `hangcheck run` ended it; None where gloo did.
        run_folder: As a reader should type it; empty where nothing was run.
    """

    scene: SceneName
    title: str
    result: Result
    why: str = ""
    remedy: str = ""
    seconds: float = 0.0
    verdict: Verdict | None = None
    run_folder: str = ""


class Rehearsed(Struct, frozen=True, kw_only=True):
    """A whole rehearsal.

    Attributes:
        changed: What was replaced so that the command runs on CPUs.
    """

    command: str
    ranks: int
    batches: int
    seconds: float
    scenes: tuple[Played, ...]
    changed: tuple[str, ...] = ()

    @property
    def hung(self) -> tuple[Played, ...]:
        """The scenes in which the ranks hung."""
        return tuple(one for one in self.scenes if one.result == "hung")


class Stage:
    """Where scenes are played: one command, its folders, its limits.

    Attributes:
        facts: Of the command as it is; nothing before that was played.
    """

    def __init__(
        self,
        command: Sequence[str],
        ranks: int,
        batches: int,
        root: RunFolder,
        limit_s: float,
        shown: Callable[[Path], str],
    ) -> None:
        self._command, self._names_cuda = on_cpu_ranks(command, ranks)
        self._ranks = ranks
        self._batches = batches
        self._root = root
        self._limit_s = limit_s
        self._shown = shown
        self.facts = Facts()

    def play_as_it_is(self, scene: Scene) -> Played:
        """Run the command as it is, and learn what it has."""
        played, notes = self._run(scene)
        self.facts = facts_of(notes, self._ranks)
        if played.result == "hung":
            return played
        log = f"what it printed: {self._shown(self._folder(scene).path)}.log"
        if played.result == "unclear":
            raise CannotRehearse(f"it {played.why}", f"{NO_BATCHES}; {log}")
        if played.result != "passed":
            raise CannotRehearse(f"it fails on CPU ranks as it is: {played.why}", log)
        if not notes:
            raise CannotRehearse(
                "nothing of it could be reached: no process imported torch under our hooks",
                "start Python without -S, -I and -E, in the environment of this package",
            )
        if self.facts.world < self._ranks:
            met = self.facts.world or "none"
            raise CannotRehearse(
                f"{self._ranks} ranks were wanted, and {met} met in a process group",
                f"start it with torchrun, or let it start {self._ranks} ranks on CPUs; {log}",
            )
        enough = max(LEAST_LIMIT_S, 60.0 + SLOWER * played.seconds)
        self._limit_s = min(self._limit_s, enough)
        return played

    def play(self, scene: Scene) -> Played:
        """Play a scene that can take place."""
        played, notes = self._run(scene)
        if played.result == "passed" and not any(note.kind == "provoked" for note in notes):
            return msgspec.structs.replace(
                played, result="skipped", why="it did not come to it in the few batches"
            )
        return played

    def _run(self, scene: Scene) -> tuple[Played, tuple[Note, ...]]:
        folder = self._folder(scene)
        notes_folder = folder.path.with_name(f"{folder.run_id}.notes")
        notes_folder.mkdir(parents=True, mode=0o700)
        part = Part(
            scene=scene.name,
            folder=str(notes_folder.absolute()),
            ranks=self._ranks,
            batches=self._batches,
            uneven=self.facts.uneven,
            by_output="loss" not in self.facts.kinds and scene.name != AS_IT_IS,
            names_cuda=self._names_cuda,
        )
        environment = {
            **SHORT_PATIENCE,
            **os.environ,
            **CPU_ENVIRONMENT,
            # its own, so that what it cost is not counted with real runs
            "HANGCHECK_LEDGER": str(notes_folder.absolute() / "ledger"),
            VARIABLE: msgspec.json.encode(part).decode(),
        }
        trial = Trial(devices=self._ranks, workers=None, command=self._command)
        outcome = run_trial(trial, folder, self._limit_s, environment)
        notes = tuple(_read_notes(notes_folder))
        result, why = judge_scene(outcome, notes, self._ranks)
        played = Played(
            scene=scene.name,
            title=scene.title,
            result=result,
            why=why,
            remedy=scene.remedy if result == "hung" else "",
            seconds=round(outcome.seconds, 1),
            # what ended a rank that gloo ended is not why the ranks parted
            verdict=outcome.verdict if result == "hung" and outcome.result == "hang" else None,
            run_folder=self._shown(folder.path),
        )
        return played, notes

    def _folder(self, scene: Scene) -> RunFolder:
        return RunFolder(self._root.path.with_name(f"{self._root.run_id}-{scene.name}"))


def _read_notes(folder: Path) -> Iterator[Note]:
    """All notes that can be read; each rank's in the order in which it wrote them."""
    for path in sorted(folder.glob("*.jsonl")):
        try:
            lines = read_owned(path, EVIDENCE_BYTES).splitlines()
        except OSError:
            continue
        for line in lines:
            try:
                yield msgspec.json.decode(line, type=Note)
            except msgspec.MsgspecError:
                continue


def judge_scene(outcome: Outcome, notes: Sequence[Note], ranks: int) -> tuple[Result, str]:
    """Say what came of a scene, and why, from how its run ended and what its ranks noted."""
    raised = {note.rank: note for note in notes if note.kind == "raised"}
    if outcome.result == "passed":
        return "passed", ""
    if outcome.result == "hang":
        # others wait for a rank that an error ended, until its launcher notices
        verdict = outcome.verdict
        dead = verdict.culprits if verdict is not None and verdict.verdict == "dead" else ()
        failed = [raised[rank] for rank in dead if rank in raised and GLOO not in raised[rank].text]
        return ("crashed-on-one", failed[0].text) if failed else ("hung", outcome.where)
    if outcome.result == "late":
        return "unclear", outcome.where
    left = {note.rank for note in notes if note.kind == "left"} - raised.keys()
    parted = [note for note in raised.values() if GLOO in note.text]
    if parted and len(parted) == len(raised) and len(raised) + len(left) >= ranks:
        return "hung", _parted(parted, sorted(left))
    if len(parted) == len(raised) and _met_in_other_sizes(RunFolder(Path(outcome.run_folder))):
        return "hung", OTHER_SIZES
    kinds = {note.text.partition(":")[0] for note in raised.values()}
    said = next((f"{note.text} {note.key}" for note in raised.values()), outcome.where)
    if len(raised) >= ranks and len(kinds) == 1:
        return "crashed-alike", said
    return "crashed-on-one", said


def _met_in_other_sizes(folder: RunFolder) -> bool:
    """Whether gloo, which says so from a thread of its own, ended a rank for that."""
    output = folder.path.with_name(f"{folder.run_id}.log")
    try:
        return GLOO_MISMATCH in read_end_owned(output, EVIDENCE_BYTES)[0]
    except OSError:
        return False


def _parted(parted: Sequence[Note], left: Sequence[int]) -> str:
    """Say of ranks that gloo ended, since they met in no common collective, where they were."""
    places = [f"rank {note.rank} was in {note.key or 'a collective'}" for note in parted]
    places += [f"rank {rank} had left" for rank in left]
    return f"{', '.join(places)}: gloo notices that they do not meet and fails, NCCL would hang"


def play_all(
    stage: Stage, wanted: Collection[str], say: Callable[[str], None]
) -> tuple[Played, ...]:
    """Play the scenes in turn; what the program does not have is skipped."""
    first, *rest = SCENES
    say(f"{first.title}: runs")
    played = [stage.play_as_it_is(first)]
    for scene in rest:
        if scene.name not in wanted:
            continue
        why = "it hangs as it is" if played[0].result == "hung" else scene.missing(stage.facts)
        if why:
            played.append(Played(scene=scene.name, title=scene.title, result="skipped", why=why))
            continue
        say(f"{scene.title}: runs")
        played.append(stage.play(scene))
    return tuple(played)
