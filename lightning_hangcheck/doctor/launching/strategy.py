"""What the script's source says before it runs: can it be parsed, which strategy does it ask for?

Nothing is run. What the source does not tell has no answer.
"""

from __future__ import annotations

import ast
import platform
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from lightning_hangcheck.doctor.check import Check
from lightning_hangcheck.doctor.places import MOST_BYTES, beginning
from lightning_hangcheck.files.apart import NoAnswerFromStorage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lightning_hangcheck.doctor.subject import Subject

SCRIPT = "script"
NAME = "Trainer's strategy"
READ_LIMIT_S = 2.0
LIGHTNING = ("lightning", "pytorch_lightning")
REMEDY = 'Trainer(..., strategy="ddp")'
GUESSED = "leaves the strategy to be guessed from what each rank sees"


class _Asked(NamedTuple):
    """A strategy that the source asks for.

    Attributes:
        strategy: ``auto``, another name, empty for none; None where only running it would tell.
    """

    line: int
    strategy: str | None


def script_parses(subject: Subject) -> tuple[Check, ...]:
    """Find and parse the script of the command.

    Args:
        subject: The run.
    """
    if subject.launch.script is None:
        return ()
    found = _parsed(subject.launch.script, starts_here=_starts_here(subject))
    if isinstance(found, Check):
        return (found,)
    return (Check(SCRIPT, "ok", f"{subject.launch.script} is there and can be parsed"),)


def strategy_named(subject: Subject) -> tuple[Check, ...]:
    """Warn where several ranks leave the strategy to be guessed: ``auto``, which is the default.

    Args:
        subject: The run.
    """
    launch = subject.launch
    if launch.script is None or launch.ranks == 1:
        return ()
    given = launch.argument("--strategy") or launch.argument("--trainer.strategy")
    if given is not None:
        if given != "auto":
            return (Check(NAME, "ok", f"the arguments ask for {given}"),)
        return (Check(NAME, "warning", f"--strategy auto {GUESSED}", "--strategy ddp"),)
    tree = _parsed(launch.script, starts_here=True)
    if isinstance(tree, Check):
        return ()  # `script_parses` says so
    asked = list(_strategies(tree, starts_ranks=launch.launcher != "python"))
    for one in asked:
        place = f"{launch.script}:{one.line}"
        if one.strategy == "auto":
            return (Check(NAME, "warning", f'{place} {GUESSED} ("auto")', REMEDY),)
        if one.strategy == "":
            sentence = f'{place} names no strategy: "auto" is the default, and {GUESSED}'
            return (Check(NAME, "warning", sentence, REMEDY),)
    if not asked or any(one.strategy is None for one in asked):
        return ()
    named = ", ".join(f"{launch.script}:{one.line} asks for {one.strategy}" for one in asked)
    return (Check(NAME, "ok", named),)


def _starts_here(subject: Subject) -> bool:
    """Srun and mpirun may start it in another folder, or in a container."""
    return subject.launch.launcher not in ("slurm", "mpi")


def _parsed(script: str, *, starts_here: bool) -> ast.Module | Check:
    """The script's source, or what is wrong with it."""
    try:
        source = beginning(Path(script), READ_LIMIT_S)
        if len(source) < MOST_BYTES:
            return ast.parse(source)
    except FileNotFoundError:
        sentence = f"{script} is not there, as seen from {Path.cwd()}"
        remedy = f"correct its path: ls {script}"
        return Check(SCRIPT, "failed" if starts_here else "warning", sentence, remedy)
    except (OSError, NoAnswerFromStorage) as error:
        return Check(SCRIPT, "warning", f"{script} cannot be read: {error}", f"ls -l {script}")
    except (SyntaxError, ValueError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        why = error.msg if isinstance(error, SyntaxError) else str(error)
        sentence = f"{script}{line} cannot be parsed by Python {platform.python_version()} ({why})"
        return Check(SCRIPT, "failed", sentence, f"python -m py_compile {script}")
    return Check(SCRIPT, "warning", f"{script} is too large to be read", f"ls -l {script}")


def _strategies(tree: ast.Module, *, starts_ranks: bool) -> Iterator[_Asked]:
    """Each strategy that is asked for, and each Trainer of Lightning that is given none."""
    trainers, modules = _names_of_lightning(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        function = node.func
        root = function
        while isinstance(root, ast.Attribute):
            root = root.value
        of_lightning = (isinstance(function, ast.Name) and function.id in trainers) or (
            isinstance(function, ast.Attribute)
            and function.attr == "Trainer"
            and isinstance(root, ast.Name)
            and root.id in modules
        )
        value = given.get("strategy")
        if not of_lightning:
            if isinstance(value, ast.Constant) and value.value == "auto":
                yield _Asked(value.lineno, "auto")
        elif not starts_ranks and _is_one(given.get("devices")) and "num_nodes" not in given:
            continue  # one rank
        elif value is not None:
            yield _Asked(value.lineno, _named(value))
        else:
            yield _Asked(node.lineno, None if None in given else "")  # None stands for **others


def _names_of_lightning(tree: ast.Module) -> tuple[set[str], set[str]]:
    """The names under which a script has Lightning's Trainer, and modules that have it."""
    trainers: set[str] = set()
    modules: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] in LIGHTNING:
                    modules.add(alias.asname or alias.name.split(".")[0])
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in LIGHTNING:
            for alias in node.names:
                if alias.name in ("Trainer", "*"):
                    trainers.add(alias.asname or "Trainer")
                else:
                    modules.add(alias.asname or alias.name)
    return trainers, modules


def _is_one(devices: ast.expr | None) -> bool:
    return isinstance(devices, ast.Constant) and devices.value in (1, "1")


def _named(value: ast.expr) -> str | None:
    """``"ddp"`` or ``DDPStrategy(...)``; None of anything that has no value before it runs."""
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        return value.value
    if isinstance(value, ast.Call):
        name = ast.unparse(value.func).rpartition(".")[2]
        return name if name.endswith("Strategy") else None
    return None
