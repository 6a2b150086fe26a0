"""Writes the source of a program from its composition, and the truth beside it."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from corpus.generator import launching, threads
from corpus.generator.composition import WITHOUT_SYNC, Composition, draw
from corpus.generator.filling import fill
from corpus.generator.frameworks import huggingface, lightning, loops
from corpus.generator.truths import holder_of, truth_of_composition
from corpus.generator.waiting import WAITS, Wait, source_of
from corpus.generator.words import DATASETS, MODELS, Names
from hangbench.bench import Truth
from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable

RUN_NAMES = ("run", "progress", "session", "job", "shared")
AFFECTED_NAMES = ("OLD_HOSTS", "LATE_RANKS", "PATCHED", "SLOW_HOSTS", "OUTDATED")
FIRST_RANK = (
    "dist.get_rank() == 0",
    "$run.rank == 0",
    "not $run.rank",
    'os.environ.get("LOCAL_RANK", "0") == "0"',
)
ALWAYS = (
    *("gc", "logging", "os", "time", "torch", "torch.nn as nn", "types.SimpleNamespace", "atexit"),
    *("onset.mark_onset", "torch.utils.data.DataLoader", "torch.utils.data.Dataset"),
)
LEFT_EMPTY = ("in_teardown", "in_callback", "in_validation_end")
"""Slots of Lightning's script that are all that their hook has."""


class Program(Struct, frozen=True, kw_only=True):
    """A script and its truth.

    Attributes:
        composed: The composition in words.
    """

    name: str
    composed: str
    source: str
    truth: Truth
    slow: bool


def program_of(seed: int, number: int, healthy: bool, quick: bool = False) -> Program:
    """Compose the program of this number; the same for the same seed."""
    random = Random(f"{seed}/{number}/{healthy}/{quick}")
    one = draw(random, healthy, quick)
    names = Names(random)
    words = _words(one, names, random)
    source = _source(one, words)
    composed = (
        f"{one.framework}, {one.ranks} ranks by {one.launch}: {one.mechanism.name} at {one.place}"
        f" in {one.thread}, on {list(one.affected)}; the others wait: {one.waiting}"
    )
    kind = "healthy" if healthy else "hanging"
    return Program(
        name=f"generated_{seed}_{number:03}_{kind}",
        composed=composed,
        source=f'"""Composed by HangBench: {composed}."""\n\n{source}',
        truth=truth_of_composition(one, words),
        slow=one.mechanism.slow,
    )


def _words(one: Composition, names: Names, random: Random) -> dict[str, str]:
    run, noun = random.choice(RUN_NAMES), names.noun()
    words = {
        "startup": names.of_place("startup"),
        "load_tokenizer": names.of_place("tokenizer"),
        "load_model": names.of_place("model_load"),
        "create_logger": names.of_place("logger_init"),
        "load_dataset": names.of_place("dataloading"),
        "evaluate": names.of_place("validation"),
        "save_checkpoint": names.of_place("checkpoint_save"),
        "generate": names.of_place("generate"),
        "cleanup": names.of_place("teardown"),
        "train": names.of_place("training_step"),
    }
    words |= {name: names.function() for name in ("function", "helper", "third", "sync", "through")}
    first = random.choice(FIRST_RANK)
    return words | {
        "run": run,
        "noun": noun,
        "Noun": noun.title().replace("_", ""),
        "word": names.noun(),
        "Model": random.choice(MODELS),
        "Dataset": random.choice(DATASETS),
        "AFFECTED": random.choice(AFFECTED_NAMES),
        "spelled": str(random.randrange(2)),
        "is_first": fill(first, run=run),
        "pace": str(random.choice((0.05, 0.1, 0.2))),
        "workers": str(random.choice((1, 2)) if one.place == "worker" else 0),
        "bar": str(random.random() < 0.5),
        "exit": str(random.randrange(2)),
        "steps": str(random.choice((36, 44, 52))),
        "at": str(random.choice((9, 14, 21))),
    }


def _source(one: Composition, words: dict[str, str]) -> str:
    wait = _wait_of(one)
    definitions, imports = _definitions(one, words, wait)
    call = _call(one, words, wait)
    slots = {f"in_{place}": "" for place in _all_places()}
    slots["in_" + _slot(one)] = call
    if one.framework == "lightning":
        slots |= {name: "pass" for name in LEFT_EMPTY if not slots[name]}
    template, parts, more = _framework(one, words)
    text = fill(
        template,
        constants=_constants(one, words),
        definitions=definitions,
        launcher=launching.launcher_of(one.launch, one.ranks),
        strategy="ddp" if one.ranks > 1 else "auto",
        sanity_steps=1 if one.place == "sanity" else 0,
        steps_of_rank=_steps_of_rank(one, words),
        **slots,
        **parts,
    )
    text = fill(text, ranks=one.ranks, **words)
    return _imports([*ALWAYS, *imports, *more]) + text


def _all_places() -> set[str]:
    kinds = (loops.PHASES, lightning.PHASES, huggingface.PHASES)
    return {place for phases in kinds for place in phases}


def _slot(one: Composition) -> str:
    """The slot of the template: a worker's is that of the data set, a sanity check validates."""
    return {"worker": "dataset", "sanity": "validation"}.get(one.place, one.place)


def _wait_of(one: Composition) -> Wait | None:
    early = one.framework == "lightning" and one.place in lightning.EARLY
    if one.waiting == "nobody" or one.place in WITHOUT_SYNC or one.place == "worker" or early:
        return None
    waits = WAITS[one.waiting]
    if one.mechanism.ranked:
        waits = tuple(wait for wait in waits if wait.matches_nothing)
    return waits[one.wait_number % len(waits)]


def _definitions(
    one: Composition, words: dict[str, str], wait: Wait | None
) -> tuple[str, list[str]]:
    mechanism = one.mechanism
    named = words | {"seconds": str(one.seconds), "holder": str(holder_of(one))}
    parts = [fill(mechanism.source, meet="dist.barrier()", **named)]
    imports = [*mechanism.imports, *threads.IMPORTS[one.thread]]
    if one.thread != "main":
        parts.append(
            threads.run_in(one.thread, _entry(one, words), words["through"], words["word"])
        )
    if wait is not None:
        parts.append(source_of(wait, source=one.affected[0], **words))
        imports += wait.imports
    return "\n\n\n".join(part.strip("\n") for part in parts), imports


def _entry(one: Composition, words: dict[str, str]) -> str:
    """The function by which a mechanism begins: of some it is the one around the waiting one."""
    return words["helper" if one.mechanism.name == "condition_never_notified" else "function"]


def _call(one: Composition, words: dict[str, str], wait: Wait | None) -> str:
    name = words["through"] if one.thread != "main" else _entry(one, words)
    lines = [f"{name}({_due(one, words)})"]
    if wait is not None:
        lines.append(f"{words['sync']}()")
    return "\n".join(lines)


def _due(one: Composition, words: dict[str, str]) -> str:
    """When it happens, on which ranks."""
    run, parts = words["run"], []
    if len(one.affected) < one.ranks and one.mechanism.affects != "first":
        parts.append(_ranks_due(one, words))
    if one.place in ("dataset", "worker"):
        batches = int(words["at"]) // (2 if one.place == "worker" else 1)  # two workers take turns
        parts.append(f"{run}.read == {8 * batches + 4}")
    elif one.place in ("forward", "step", "callback", "backward", "optimizer"):
        parts.append(f"{run}.step == {words['at']}")
    elif one.place == "sanity":
        parts.append("self.trainer.sanity_checking")
    elif one.place == "validation" and one.framework == "lightning":
        parts.append("index == 1")
    elif one.place == "validation" and one.framework == "huggingface":
        parts.append(f"{run}.evaluated == 2")
    return " and ".join(parts) or "True"


def _ranks_due(one: Composition, words: dict[str, str]) -> str:
    rank = f"{words['run']}.rank"
    if one.framework == "lightning" and one.place in lightning.EARLY:
        rank = 'int(os.environ["LOCAL_RANK"])'
    if len(one.affected) == 1 and words["spelled"] == "0":
        return f"{rank} == {one.affected[0]}"
    return f"{rank} in {words['AFFECTED']}"


def _constants(one: Composition, words: dict[str, str]) -> str:
    """The rank is told by the environment at first: a worker that is spawned runs no ``main``."""
    return (
        f"{words['AFFECTED']} = {set(one.affected)}\n"
        f"{words['run']} = SimpleNamespace("
        'rank=int(os.environ.get("RANK", 0)), step=0, read=0, evaluated=0)'
    )


def _steps_of_rank(one: Composition, words: dict[str, str]) -> str:
    if not one.mechanism.name.startswith("uneven"):
        return "STEPS"
    return f"STEPS - 5 * ({words['run']}.rank in {words['AFFECTED']})"


def _framework(
    one: Composition, words: dict[str, str]
) -> tuple[str, dict[str, str], Iterable[str]]:
    if one.framework == "lightning":
        return lightning.SCRIPT, {}, lightning.IMPORTS
    launch_imports = launching.IMPORTS[one.launch]
    destroy = fill(loops.DESTROY)
    if one.framework == "huggingface":
        imports = (*huggingface.IMPORTS, *launch_imports)
        return huggingface.SCRIPT, {"destroy": destroy}, imports
    family = loops.ALONE if one.ranks == 1 else loops.FRAMEWORKS[one.framework]
    parts = {name: str(text) for name, text in family.items() if name != "imports"}
    parts = {name: fill(text) for name, text in parts.items()}
    at_exit = one.place == "teardown" and one.waiting == "nobody" and words["exit"] == "1"
    at_exit = at_exit and one.thread == "main"  # no pool takes work any more by then
    leave = loops.AT_EXIT if at_exit else loops.LEAVE
    leave = fill(leave, destroy=destroy if one.ranks > 1 else "")
    return loops.LOOP, parts | {"at_end": leave}, (*family["imports"], *launch_imports)


def _imports(wanted: Iterable[str]) -> str:
    """Write the import lines: ``a.b.Name`` as a from-import, ``a.b`` and ``a as b`` as they are."""
    lines = set()
    for name in wanted:
        last = name.split()[0].rpartition(".")[2]
        if " as " not in name and (
            last[0].isupper() or last in ("mark_onset", "fully_shard", "init_device_mesh")
        ):
            module, _, what = name.rpartition(".")
            lines.add(f"from {module} import {what}")
        else:
            lines.add(f"import {name}")
    return "\n".join(sorted(lines)) + "\n\n"
