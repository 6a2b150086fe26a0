"""Defines checks, their findings, and the run that they examine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, get_args

from msgspec import Struct
from msgspec.structs import replace

from lightning_hangcheck.doctor.launch_command import Launch, read_launch
from lightning_hangcheck.errors import UnreadableRun
from lightning_hangcheck.files import NoAnswerFromStorage, apart
from lightning_hangcheck.planning.plan import Extra

if TYPE_CHECKING:
    from lightning_hangcheck.ledger.ledger_file import History

Group = Literal["seeing", "launch", "ranks", "environment", "storage", "data", "memory"]
GROUPS: tuple[Group, ...] = get_args(Group)  # In display order.
Status = Literal["ok", "warning", "failed"]
DEPTH = 4  # Folder levels listed below --checkpoints: run, kind, step and part.
LIMIT_S = 4.0  # More than a healthy machine needs for any local check.
READ_LIMIT_S = 2.0
MOST_BYTES = 2**20  # Limit for reading a script or configuration.


class Finding(Struct, frozen=True, kw_only=True):
    """What a check found, with all that a reader needs to act.

    Attributes:
        check: Name of the finding; by default that of its check.
        status: ``warning``: the run works with a limitation. ``failed``: the run will not work.
        why: What goes wrong in a run if this is not ok.
        remedy: Everything to do, ``commands`` included; empty if nothing is needed.
        commands: What to type or paste, unchanged.
        details: Further facts, one per line.
    """

    group: str = ""
    check: str = ""
    status: Status
    looked_at: str = ""
    found: str
    why: str = ""
    remedy: str = ""
    commands: tuple[str, ...] = ()
    seconds: float = 0.0
    details: tuple[str, ...] = ()


def ok(found: str, check: str = "", details: tuple[str, ...] = ()) -> Finding:
    """Report that something is fine."""
    return Finding(status="ok", found=found, details=details, check=check)


def warning(
    found: str, *commands: str, advice: str = "", check: str = "", status: Status = "warning"
) -> Finding:
    """Report a limitation of the run; ``advice`` says in words what to do."""
    remedy = "\n".join(filter(None, (advice, *commands)))
    return Finding(status=status, found=found, remedy=remedy, commands=commands, check=check)


def failed(found: str, *commands: str, advice: str = "", check: str = "") -> Finding:
    """Report something that will not work."""
    return warning(found, *commands, advice=advice, check=check, status="failed")


class Subject(Struct, frozen=True, kw_only=True):
    """A run before its start, as described by the options of ``hangcheck doctor``.

    Attributes:
        command: The words after `hangcheck run --`; empty if no command was given.
        checkpoints: Where the run will save, as an fsspec URL or path; None if unknown.
        backbone: The model that loads ``loads``: folder, file, or name in the hub's cache.
        fresh_minutes: Maximum age of ``needs`` in minutes; None for no limit.
    """

    command: tuple[str, ...] = ()
    environment: Mapping[str, str]
    run_dir: Path
    checkpoints: str | None = None
    depth: int = DEPTH
    expect: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    loads: tuple[str, ...] = ()
    backbone: str | None = None
    extras: tuple[Extra, ...] = ()
    fresh_minutes: float | None = None

    @property
    def launch(self) -> Launch:
        """What the command starts, according to its words and the environment."""
        return read_launch(self.command, self.environment)

    def uses(self, tool: str) -> bool:
        """Whether the command, its script or a set variable names a tool (lower case)."""
        named = any(name.startswith(f"{tool.upper()}_") for name in self.environment)
        script = self.launch.script
        try:
            return (
                named
                or tool in " ".join(self.command).lower().split()
                or (script is not None and tool.encode() in beginning(Path(script)).lower())
            )
        except (OSError, NoAnswerFromStorage):
            return False

    def ledger(self) -> History:
        """Read the ledger that the run will write to; empty if it cannot be read within 2 s."""
        from lightning_hangcheck.ledger import ledger_file  # most checks do not need the ledger

        ledger = ledger_file.find_ledger(self.environment.get("HANGCHECK_LEDGER") or None)
        try:
            return apart(READ_LIMIT_S, lambda: ledger_file.read(ledger))
        except (UnreadableRun, NoAnswerFromStorage):
            return ledger_file.History()


Look: TypeAlias = "Callable[..., Finding | Iterable[Finding] | None]"
"""Returns findings; none if the check does not apply to this run."""


class Check(NamedTuple):
    """A check to make before a run.

    Attributes:
        why: What goes wrong in a run if the check does not pass.
        alone: The check starts processes, or occupies what other checks want to find free. It runs
            after the others, with time limits of its own, and Ctrl-C ends what it started.
        well: Reported if the check finds nothing; empty to report nothing.
    """

    group: str
    name: str
    looked_at: str
    why: str
    look: Look
    limit_s: float = LIMIT_S
    alone: bool = False
    well: str = ""

    def __call__(self, subject: Subject, **given: object) -> tuple[Finding, ...]:
        """Run the check."""
        found = self.look(subject, **given)
        findings = (found,) if isinstance(found, Finding) else tuple(found or ())
        if self.well and not findings:
            findings = (ok(self.well),)
        about = {"group": self.group, "looked_at": self.looked_at, "why": self.why}
        return tuple(
            replace(finding, check=finding.check or self.name, **about) for finding in findings
        )


CHECKS: list[Check] = []  # The checks of all imported modules.


def check(
    group: Group,
    why: str,
    *,
    name: str = "",
    limit_s: float = LIMIT_S,
    alone: bool = False,
    well: str = "",
) -> Callable[[Look], Check]:
    """Register a function as a check; its docstring says what the check looks at."""

    def register(look: Look) -> Check:
        words = " ".join((look.__doc__ or "").split()).removesuffix(".")
        looked_at = words if words[1:2].isupper() else words[:1].lower() + words[1:]
        named = name or look.__name__.replace("_", " ")
        CHECKS.append(Check(group, named, looked_at, why, look, limit_s, alone, well))
        return CHECKS[-1]

    return register


def nearest(folder: Path) -> Path:
    """Return the folder, or its nearest existing parent; may block on a stalled disk."""
    while not folder.exists():
        folder = folder.parent
    return folder


def beginning(file: Path) -> bytes:
    """Read the first MiB of a file; raises OSError, or NoAnswerFromStorage after 2 s."""

    def read() -> bytes:
        with file.open("rb") as opened:
            return opened.read(MOST_BYTES)

    return apart(READ_LIMIT_S, read)
