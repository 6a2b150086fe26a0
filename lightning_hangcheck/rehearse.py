"""`hangcheck rehearse`: runs the user's command on a few CPU ranks, one fault scene at a time.

Each scene runs under `hangcheck run` with short timeouts and a limit. `hooks.rehearsal` is the part
inside a rank.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import msgspec
from msgspec import Struct

from lightning_hangcheck.doctor.launch_command import MODULE, NO_SCRIPT, read_launch
from lightning_hangcheck.errors import HangcheckError
from lightning_hangcheck.files import EVIDENCE_BYTES, read_end_owned, read_owned
from lightning_hangcheck.hooks.being_watched import REHEARSAL
from lightning_hangcheck.hooks.rehearsal import GLOO, Note, NoteKind, Part, SceneName
from lightning_hangcheck.model.verdict import Verdict
from lightning_hangcheck.report.paragraphs import aligned, labelled
from lightning_hangcheck.rundir import RunFolder
from lightning_hangcheck.smoke import Outcome, Trial, own_torchrun, run_trial, unmade
from lightning_hangcheck.text.shown import several, show_command

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

MOST_FILES = 200
MOST_BYTES = 1_000_000
STARTS_RANKS = re.compile(
    r"\b(mp\.spawn|multiprocessing\.spawn|start_processes|notebook_launcher|mp\.Process)\b"
    r"|(?m:^\s*(?:import|from)\s+(?:pytorch_lightning|lightning)\b)"
)
"""Matches a script that starts its ranks itself, as Lightning does."""
NO_RANK = "write for example: hangcheck rehearse -- torchrun train.py"


class CannotRehearse(HangcheckError):
    """A command that cannot be rehearsed; the message says why."""

    def __str__(self) -> str:
        return f"cannot be rehearsed: {super().__str__()}"


CPU_ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "",  # hides GPUs
    "HIP_VISIBLE_DEVICES": "",
    "ACCELERATE_USE_CPU": "true",
    "ACCELERATE_MIXED_PRECISION": "no",
    "TOKENIZERS_PARALLELISM": "false",
    "WANDB_MODE": "offline",
    "OMP_NUM_THREADS": "1",
}


def on_cpu_ranks(command: Sequence[str], ranks: int) -> tuple[tuple[str, ...], bool]:
    """Turn a command into one for CPU ranks.

    torchrun's number of ranks is replaced. `accelerate launch` starts several CPU ranks only by
    MPI, so torchrun replaces it. A plain script is unchanged if it uses Lightning or spawns ranks;
    else torchrun starts it.

    Returns:
        The command, and whether the program or a file that it imports from its folder mentions
        cuda.

    Raises:
        CannotRehearse: The launcher is not supported, or there is no script.
    """
    launch = read_launch(command, {})
    program, source, name = launch.program, _source(launch.script), Path(command[0]).name
    if launch.launcher not in ("torchrun", "accelerate", "python"):
        raise CannotRehearse(
            f"{name} is neither torchrun, accelerate launch nor python",
            "give the command that it starts on each node: hangcheck rehearse -- torchrun train.py",
        )
    if not program:
        raise CannotRehearse(f"{name} was given no script", NO_RANK)
    if launch.launcher == "python" and program[0] == "-c":
        raise CannotRehearse("python -c has no file that ranks could start", NO_RANK)
    if launch.launcher == "python" and STARTS_RANKS.search(source):
        return tuple(command), "cuda" in source
    kinds = [kind for kind in (*MODULE, *NO_SCRIPT) if kind in launch.options]
    return (*own_torchrun(ranks), *kinds, *program), "cuda" in source


def _source(script: str | None) -> str:
    """Return the text of a script and of what it imports from its own folder."""
    texts: dict[Path, str] = {}
    todo = [] if script is None else [Path(script)]
    while todo and len(texts) < MOST_FILES:
        path = todo.pop()
        if path in texts:
            continue
        texts[path] = ""
        try:
            with path.open(encoding="utf-8", errors="replace") as file:
                texts[path] = file.read(MOST_BYTES)
            tree = ast.parse(texts[path])
        except (OSError, SyntaxError, ValueError):
            continue
        names: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        for name in names:
            place = Path(script or "").parent.joinpath(*name.split("."))
            files = (place.with_suffix(".py"), place / "__init__.py")
            todo += [file for file in files if file.is_file()]
    return "\n".join(texts.values())


AS_IT_IS: SceneName = "as-it-is"
NAMES: tuple[str, ...] = get_args(SceneName)
NO_LOADER = "no torch DataLoader was made"


class Facts:
    """What the ranks noted while the command ran unchanged.

    Attributes:
        world: Number of ranks that met in a process group.
        uneven: Keys of the last rank's loaders that may give it fewer batches than other ranks get:
            no sampler makes them even, and the data differs between ranks.
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
            for notes in by_rank.values():  # by its name, as rank 0 may have loaders of its own
                alike = [other for other in notes if other.key == note.key] or notes[at : at + 1]
                same = any(other.key == note.key and other.mark == note.mark for other in alike)
                if alike and not same and not note.shared:
                    uneven.append(note.key)
        self.uneven = tuple(dict.fromkeys(uneven))

    def has(self, *kinds: NoteKind) -> bool:
        """Whether any note of these kinds exists."""
        return any(self._of_kind[kind] for kind in kinds)

    def texts(self, kind: NoteKind) -> list[str]:
        """Return the distinct texts of a kind."""
        return list(dict.fromkeys(note.text for note in self._of_kind[kind]))


class Scene(Struct, frozen=True):
    """A scene; ``missing`` returns why a program cannot have the scene, in a clause.

    ``remedy`` is what to do if it hangs; empty if only the verdict tells.
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
    return "no end of its data was seen" if facts.has("workers") else NO_LOADER


def _of_sigterm(facts: Facts) -> str:
    if not facts.has("step"):
        return "no optimizer stepped"
    answers = max(facts.texts("step"), key=len)
    if answers == "Lightning":
        return "only Lightning answers SIGTERM, by a broadcast: send it to all ranks, never to one"
    return "" if answers else "nothing of the program answers SIGTERM"


def _of_workers(number: str, facts: Facts) -> str:
    if not facts.has("workers"):
        return NO_LOADER
    word = "no workers" if number == "0" else "1 worker"
    return f"it has {word} as it is" if facts.texts("workers") == [number] else ""


def _unless(said: str, *kinds: NoteKind) -> Callable[[Facts], str]:
    return lambda facts: "" if facts.has(*kinds) else said


_OF_BATCH = _unless("its collate function allows no such", "collate")
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
        lambda facts: _OF_BATCH(facts) if facts.has("workers") else NO_LOADER,
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
    Scene("no-workers", "no DataLoader workers", "", partial(_of_workers, "0")),
    Scene("one-worker", "one DataLoader worker", "", partial(_of_workers, "1")),
)

Result = Literal["passed", "hung", "crashed-alike", "crashed-on-one", "unclear", "skipped"]
SHORT_PATIENCE = {
    "HANGCHECK_IDLE_AFTER": "15",
    "HANGCHECK_STALL_TIMEOUT": "60",
    "HANGCHECK_BUSY_FLOOR": "60",
    "HANGCHECK_ABORT_GRACE": "3",
}
"""Unless set in the environment; longer timeouts make no sense for such short steps."""
SLOWER, LEAST_LIMIT_S = 4.0, 120.0
"""Limit of a scene: 4 times the unchanged run plus 60 s, at least 120 s."""
GLOO_MISMATCH = b"Received data size doesn't match expected size"
OTHER_SIZES = (
    "the ranks met in collectives of different sizes: gloo notices that and ends them, "
    "with NCCL they would hang or mix up the data"
)
NO_BATCHES = "let it read its batches from a DataLoader, or give it an option that makes it short"


class Played(Struct, frozen=True, kw_only=True):
    """The result of one scene; without a verdict if gloo ended it.

    ``why`` says why it did not pass, in a sentence; a reader can type ``run_folder`` as it is.
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
    """A whole rehearsal; ``changed`` lists what was replaced to run on CPUs."""

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
    """Run the command unchanged, then the wanted scenes in turn (default: all).

    Scenes that do not apply are skipped. Each scene has its own run folder next to ``root``.

    Raises:
        CannotRehearse: The command does not run on CPU ranks, or our hooks do not reach it.
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
        say(f"{scene.title}: running")
        folder = RunFolder(root.path.with_name(f"{root.run_id}-{scene.name}"))
        notes_folder = folder.path.with_name(f"{folder.run_id}.notes").absolute()
        try:
            notes_folder.mkdir(parents=True, mode=0o700)
        except OSError as error:
            raise unmade(notes_folder, error) from error
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
            # a separate ledger, so that the cost is not counted with real runs
            "HANGCHECK_LEDGER": str(notes_folder / "ledger"),
            REHEARSAL: msgspec.json.encode(part).decode(),
            "HANGCHECK_DISABLE": "0",
        }
        trial = Trial(devices=ranks, workers=None, command=words)
        outcome = run_trial(trial, folder, limit_s, environment)
        notes = []  # each rank's in the order of writing
        for path in sorted(notes_folder.glob("*.jsonl")):
            with suppress(OSError):
                for line in read_owned(path, EVIDENCE_BYTES).splitlines():
                    with suppress(msgspec.MsgspecError):
                        notes.append(msgspec.json.decode(line, type=Note))
        result, why = judge_scene(outcome, notes, ranks)
        if scene.name == AS_IT_IS:
            facts = Facts(notes, ranks)
            log = f"what it printed: {shown(folder.path)}.log"
            if result == "unclear":
                raise CannotRehearse(f"it {why}", f"{NO_BATCHES}; {log}")
            if result not in ("hung", "passed"):
                raise CannotRehearse(f"it fails on CPU ranks as it is: {why}", log)
            if result == "passed" and not notes:
                raise CannotRehearse(
                    "nothing of it could be reached: no process imported torch under our hooks",
                    "start Python without -S, -I and -E, in the environment of this package",
                )
            if result == "passed" and facts.world < ranks:
                met = f"{facts.world or 'none'} met in a process group"
                raise CannotRehearse(
                    f"{ranks} ranks were wanted, and {met}",
                    f"start it with torchrun, or let it start {ranks} ranks on CPUs; {log}",
                )
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
                # the verdict on a run that gloo ended does not explain why ranks diverged
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


def judge_scene(outcome: Outcome, notes: Sequence[Note], ranks: int) -> tuple[Result, str]:
    """Return the result of a scene, and why, from the end of its run and its ranks' notes."""
    raised = {note.rank: note for note in notes if note.kind == "raised"}
    if outcome.result == "passed":
        return "passed", ""
    if outcome.result == "late":
        return "unclear", outcome.where
    # gloo ends ranks that diverge; NCCL would hang
    parted = {rank: note for rank, note in raised.items() if GLOO in note.text}
    if outcome.result == "hang":
        # the others wait for a rank that an error ended, until its launcher notices
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
        with suppress(OSError):  # gloo may report it from a thread of its own
            if GLOO_MISMATCH in read_end_owned(Path(outcome.output_file), EVIDENCE_BYTES)[0]:
                return "hung", OTHER_SIZES
    kinds = {note.text.partition(":")[0] for note in raised.values()}
    said = next((f"{note.text} {note.key}" for note in raised.values()), outcome.where)
    alike = len(raised) >= ranks and len(kinds) == 1
    return "crashed-alike" if alike else "crashed-on-one", said


SHOWN: dict[Result, str] = {
    "passed": "passed",
    "hung": "HUNG",
    "crashed-alike": "crashed alike",
    "crashed-on-one": "CRASHED",
    "unclear": "UNCLEAR",
    "skipped": "skipped",
}
SHORT = 88


def render(rehearsed: Rehearsed) -> str:
    """Write the result; each scene that hung gets a paragraph."""
    hung = rehearsed.hung
    scenes = several(sum(played.result != "skipped" for played in rehearsed.scenes), "scene")
    where = f"{several(rehearsed.ranks, 'CPU rank')}, {rehearsed.seconds:.0f} s"
    found = f"hangs in {len(hung)} of {scenes}: {hung[0].title}" if hung else ""
    headline = f"REHEARSAL  {found or f'{scenes} played, none hangs'} ({where})"
    rows = []
    for played in rehearsed.scenes:
        reason = played.why if len(played.why) <= SHORT else f"{played.why[: SHORT - 3]}..."
        if played.result == "hung" and played.verdict is not None:
            phase = f"  phase {played.verdict.phase}" if played.verdict.phase else ""
            reason = f"{played.verdict.cause or ''}{phase}"
        seconds = f"{played.seconds:.1f} s" if played.seconds else ""
        rows.append((played.title, SHOWN[played.result], seconds, reason))
    lines = [headline, "", *aligned(rows, (3,), -1)]
    for played in hung:  # where it hangs, what to do, where to read more
        lines += ["", f"      {played.title}", *labelled("where", played.why, most=4)]
        known = played.verdict.remedies if played.verdict is not None else ()
        # the scene is known to be the reason, whatever its ranks would show otherwise
        remedy = played.remedy or next((remedy.text for remedy in known), "")
        lines += labelled("do", remedy, most=3) if remedy else []
        lines += labelled("more", f"hangcheck report {shlex.quote(played.run_folder)}", most=1)
    if rehearsed.changed:
        lines += ["", *labelled("instead", "; ".join(rehearsed.changed), most=3)]
    return "\n".join(lines) + "\n"
