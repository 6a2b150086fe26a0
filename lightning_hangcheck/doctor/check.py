"""What a check is, what it finds, and the run that it looks at."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, get_args

from msgspec import Struct
from msgspec.structs import replace

from lightning_hangcheck.doctor.launch_command import Launch, read_launch
from lightning_hangcheck.errors import UnreadableRun
from lightning_hangcheck.files.apart import NoAnswerFromStorage, apart
from lightning_hangcheck.planning.plan import Extra

if TYPE_CHECKING:
    from lightning_hangcheck.ledger.ledger_file import Pages

Group = Literal["seeing", "launch", "ranks", "environment", "storage", "data", "memory"]
GROUPS: tuple[Group, ...] = get_args(Group)  # In the order in which they are shown.
Status = Literal["ok", "warning", "failed"]
DEPTH = 3  # Folders of a place of checkpoints: run, step and part.
LIMIT_S = 4.0  # More than any healthy machine needs for what is not about other machines.
READ_LIMIT_S = 2.0
MOST_BYTES = 2**20  # Of a script or configuration that is read.


class Finding(Struct, frozen=True, kw_only=True):
    """What a check found, with all that a reader needs to act on it.

    Attributes:
        check: Name; that of the whole check where it has no other.
        status: ``warning`` the run goes on with less, ``failed`` it will not work.
        why: What goes wrong in a run where this is not ok.
        remedy: All that there is to do, ``commands`` included; empty where nothing is needed.
        commands: What to type or paste, each as it stands.
        details: More of what was found, a line each.
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
    """Something was seen and is well."""
    return Finding(status="ok", found=found, details=details, check=check)


def warning(
    found: str, *commands: str, advice: str = "", check: str = "", status: Status = "warning"
) -> Finding:
    """The run will have to do without something; ``advice`` says in words what to do."""
    remedy = "\n".join(filter(None, (advice, *commands)))
    return Finding(status=status, found=found, remedy=remedy, commands=commands, check=check)


def failed(found: str, *commands: str, advice: str = "", check: str = "") -> Finding:
    """Something will not work."""
    return warning(found, *commands, advice=advice, check=check, status="failed")


class Subject(Struct, frozen=True, kw_only=True):
    """A run before it starts: what the options of ``hangcheck doctor`` say of it.

    Attributes:
        command: As it would stand behind `hangcheck run --`; empty where none was given.
        checkpoints: Where it will save, as fsspec names places; None where nobody says.
        backbone: The model that loads ``loads``: folder, file, or name in the hub's cache.
        fresh_minutes: Age above which what it needs is too old; None where age does not matter.
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
        """What the command starts, as far as its words and the environment tell."""
        return read_launch(self.command, self.environment)

    def uses(self, tool: str) -> bool:
        """Whether a variable of a tool is set, or command or script name it (in lower case)."""
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

    def ledger(self) -> Pages:
        """Read the ledger that the run will write to; nothing where it cannot be read in time."""
        from lightning_hangcheck.ledger import ledger_file  # most checks do not ask

        ledger = ledger_file.find_ledger(self.environment.get("HANGCHECK_LEDGER") or None)
        try:
            return apart(READ_LIMIT_S, lambda: ledger_file.read(ledger))
        except (UnreadableRun, NoAnswerFromStorage):
            return ledger_file.Pages()


Look: TypeAlias = "Callable[..., Finding | Iterable[Finding] | None]"
"""Finds something; nothing where the question does not arise in this run."""


class Check(NamedTuple):
    """One thing to check before a run.

    Attributes:
        why: What goes wrong in a run where it is not ok.
        alone: It starts processes, or takes what others want to find free: made after the others,
            where Ctrl-C ends what it started, and within limits of its own.
        well: Said where nothing is found; empty where nothing is said then.
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
        """Make the check."""
        found = self.look(subject, **given)
        findings = (found,) if isinstance(found, Finding) else tuple(found or ())
        if self.well and not findings:
            findings = (ok(self.well),)
        about = {"group": self.group, "looked_at": self.looked_at, "why": self.why}
        return tuple(replace(one, check=one.check or self.name, **about) for one in findings)


CHECKS: list[Check] = []  # All whose modules were imported.


def check(
    group: Group,
    why: str,
    *,
    name: str = "",
    limit_s: float = LIMIT_S,
    alone: bool = False,
    well: str = "",
) -> Callable[[Look], Check]:
    """Make a check of a function, whose docstring says what it looks at."""

    def register(look: Look) -> Check:
        words = " ".join((look.__doc__ or "").split()).removesuffix(".")
        looked_at = words if words[1:2].isupper() else words[:1].lower() + words[1:]
        named = name or look.__name__.replace("_", " ")
        CHECKS.append(Check(group, named, looked_at, why, look, limit_s, alone, well))
        return CHECKS[-1]

    return register


def nearest(folder: Path) -> Path:
    """Return the folder, or the nearest one above it that is there; the disk may not answer."""
    while not folder.exists():
        folder = folder.parent
    return folder


def beginning(file: Path) -> bytes:
    """Read the first MiB of a file; OSError, or NoAnswerFromStorage after 2 s."""

    def read() -> bytes:
        with file.open("rb") as opened:
            return opened.read(MOST_BYTES)

    return apart(READ_LIMIT_S, read)
