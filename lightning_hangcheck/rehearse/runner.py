"""Plays the scenes in turn, each under `hangcheck run` with short patience and a limit."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec import Struct

from lightning_hangcheck.files.safe import EVIDENCE_BYTES, read_end_owned, read_owned
from lightning_hangcheck.model.rehearsal import GLOO, VARIABLE, Note, Part, SceneName
from lightning_hangcheck.model.verdict import Verdict
from lightning_hangcheck.rehearse.launching import CPU_ENVIRONMENT, CannotRehearse, on_cpu_ranks
from lightning_hangcheck.rehearse.scenes import AS_IT_IS, NAMES, SCENES, Facts
from lightning_hangcheck.rundir import RunFolder
from lightning_hangcheck.smoke import Outcome, Trial, run_trial
from lightning_hangcheck.text.shown import show_command

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
        return tuple(played for played in self.scenes if played.result == "hung")


def play_all(
    command: Sequence[str],
    *,
    ranks: int,
    batches: int,
    wanted: Collection[str],
    root: RunFolder,
    limit_s: float,
    shown: Callable[[Path], str],
    say: Callable[[str], None],
) -> Rehearsed:
    """Play the command as it is, then the scenes in turn; what it does not have is skipped.

    Args:
        command: As the user types it.
        ranks: CPU ranks to run it on.
        batches: Most of a pass over a DataLoader.
        wanted: Names of scenes; all where there is none.
        root: Each scene has a run folder beside it.
        limit_s: For each scene.
        shown: Writes a path as a reader should type it.
        say: Told what is played.

    Raises:
        CannotRehearse: The command does not run on CPU ranks, or nothing of it can be reached.
    """
    words, names_cuda = on_cpu_ranks(command, ranks)
    facts, started = Facts(), time.monotonic()
    played: list[Played] = []
    for scene in SCENES:
        if scene.name != AS_IT_IS and scene.name not in (wanted or NAMES):
            continue
        why = scene.missing(facts)
        if played and played[0].result == "hung":
            why = "it hangs as it is"
        if why:
            played.append(Played(scene=scene.name, title=scene.title, result="skipped", why=why))
            continue
        say(f"{scene.title}: runs")
        folder = RunFolder(root.path.with_name(f"{root.run_id}-{scene.name}"))
        notes_folder = folder.path.with_name(f"{folder.run_id}.notes").absolute()
        notes_folder.mkdir(parents=True, mode=0o700)
        part = Part(
            scene=scene.name,
            folder=str(notes_folder),
            ranks=ranks,
            batches=batches,
            uneven=facts.uneven,
            by_output=scene.name != AS_IT_IS and not facts.has("loss"),
            names_cuda=names_cuda,
        )
        environment = {
            **SHORT_PATIENCE,
            **os.environ,
            **CPU_ENVIRONMENT,
            # its own, so that what it cost is not counted with real runs
            "HANGCHECK_LEDGER": str(notes_folder / "ledger"),
            VARIABLE: msgspec.json.encode(part).decode(),
        }
        trial = Trial(devices=ranks, workers=None, command=words)
        outcome = run_trial(trial, folder, limit_s, environment)
        notes = list(_read_notes(notes_folder))
        result, why = judge_scene(outcome, notes, ranks)
        if scene.name == AS_IT_IS:
            facts = Facts(notes, ranks)
            log = f"what it printed: {shown(folder.path)}.log"
            if result != "hung":
                _refuse(result, why, facts, ranks, reached=bool(notes), log=log)
            limit_s = min(limit_s, max(LEAST_LIMIT_S, 60.0 + SLOWER * outcome.seconds))
        elif result == "passed" and not any(note.kind == "provoked" for note in notes):
            result, why = "skipped", "it did not come to it in the few batches"
        played.append(
            Played(
                scene=scene.name,
                title=scene.title,
                result=result,
                why=why,
                remedy=scene.remedy if result == "hung" else "",
                seconds=round(outcome.seconds, 1),
                # what ended a rank that gloo ended is not why the ranks parted
                verdict=outcome.verdict if result == "hung" and outcome.result == "hang" else None,
                run_folder=shown(folder.path),
            )
        )
    return Rehearsed(
        command=show_command(command),
        ranks=ranks,
        batches=batches,
        seconds=round(time.monotonic() - started, 1),
        scenes=tuple(played),
        changed=tuple(facts.texts("changed")),
    )


def _refuse(result: Result, why: str, facts: Facts, ranks: int, *, reached: bool, log: str) -> None:
    """Raise where the command as it is shows nothing that scenes could be compared with."""
    if result == "unclear":
        raise CannotRehearse(f"it {why}", f"{NO_BATCHES}; {log}")
    if result != "passed":
        raise CannotRehearse(f"it fails on CPU ranks as it is: {why}", log)
    if not reached:
        raise CannotRehearse(
            "nothing of it could be reached: no process imported torch under our hooks",
            "start Python without -S, -I and -E, in the environment of this package",
        )
    if facts.world < ranks:
        raise CannotRehearse(
            f"{ranks} ranks were wanted, and {facts.world or 'none'} met in a process group",
            f"start it with torchrun, or let it start {ranks} ranks on CPUs; {log}",
        )


def _read_notes(folder: Path) -> Iterator[Note]:
    """All notes that can be read; each rank's in the order in which it wrote them."""
    for path in sorted(folder.glob("*.jsonl")):
        with suppress(OSError):
            for line in read_owned(path, EVIDENCE_BYTES).splitlines():
                with suppress(msgspec.MsgspecError):
                    yield msgspec.json.decode(line, type=Note)


def judge_scene(outcome: Outcome, notes: Sequence[Note], ranks: int) -> tuple[Result, str]:
    """Say what came of a scene, and why, from how its run ended and what its ranks noted."""
    raised = {note.rank: note for note in notes if note.kind == "raised"}
    if outcome.result == "passed":
        return "passed", ""
    if outcome.result == "late":
        return "unclear", outcome.where
    # gloo ends ranks that do not meet; NCCL would hang
    parted = {rank: note for rank, note in raised.items() if GLOO in note.text}
    if outcome.result == "hang":
        # others wait for a rank that an error ended, until its launcher notices
        verdict = outcome.verdict
        dead = verdict.culprits if verdict is not None and verdict.verdict == "dead" else ()
        failed = [raised[rank] for rank in dead if rank in raised and rank not in parted]
        return ("crashed-on-one", failed[0].text) if failed else ("hung", outcome.where)
    left = {note.rank for note in notes if note.kind == "left"} - raised.keys()
    if parted.keys() == raised.keys():
        if parted and len(parted) + len(left) >= ranks:
            places = [f"rank {rank} was in {parted[rank].key or 'a collective'}" for rank in parted]
            places += [f"rank {rank} had left" for rank in sorted(left)]
            met = "gloo notices that they do not meet and fails, NCCL would hang"
            return "hung", f"{', '.join(places)}: {met}"
        with suppress(OSError):  # gloo may say so from a thread of its own
            if GLOO_MISMATCH in read_end_owned(Path(outcome.output_file), EVIDENCE_BYTES)[0]:
                return "hung", OTHER_SIZES
    kinds = {note.text.partition(":")[0] for note in raised.values()}
    said = next((f"{note.text} {note.key}" for note in raised.values()), outcome.where)
    alike = len(raised) >= ranks and len(kinds) == 1
    return "crashed-alike" if alike else "crashed-on-one", said
