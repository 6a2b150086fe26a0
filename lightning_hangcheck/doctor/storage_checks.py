"""Checks where checkpoints go, on any fsspec file system, and rclone's configuration.

A separate process accesses the storage, so that a store without an answer blocks nothing here.
"""

from __future__ import annotations

import configparser
import fnmatch
import json
import os
import re
import shutil
import subprocess
import time
from collections import Counter
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck.doctor.check import DEPTH, Finding, beginning, check, failed, ok, warning
from lightning_hangcheck.files import NoAnswerFromStorage, apart
from lightning_hangcheck.text.shown import bytes_in_words, seconds_in_words, several

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lightning_hangcheck.doctor.check import Subject

LOOK_LIMIT_S = 10.0
WRITE_LIMIT_S = 15.0
MOST_SHOWN = 12
MOST_LINES = 30
NAME_WIDTH = 36
TRIAL_BYTES = 8 * 2**20
"""Enough to exceed what a local disk's cache hides of a sync; 0.1 s on a slow network."""
ENCRYPTED = "RCLONE_ENCRYPT_V"
REMOTE = re.compile(r"[\w.+@-][\w.+@ -]*:(?!//)")
"""rclone's ``remote:path``, which fsspec takes for a local file name."""
KEYS = {"access_key_id": "YOUR-KEY", "secret_access_key": "YOUR-SECRET"}
NO_BLOCK = "\0"


@check(
    "storage",
    "a resumed run finds nothing there, or a save that stalls or fills the disk holds up every "
    "rank in the next barrier",
    limit_s=WRITE_LIMIT_S + LOOK_LIMIT_S + 2.0,
)
def checkpoints(subject: Subject) -> Iterator[Finding]:
    """The place named by --checkpoints, as deep as --depth says, and --expect.

    8 MiB are written there, synchronised, read back and removed.
    """
    url = subject.checkpoints
    if url is None:
        return
    with suppress(Exception):  # import what the storage needs before the fork, see `apart`
        import fsspec  # comes with torch and Lightning; the fork reports what this raises

        fsspec.get_filesystem_class(fsspec.core.split_protocol(url)[0] or "file")
    doing = "checkpoints"
    try:
        found = apart(LOOK_LIMIT_S, lambda: _look(url, subject.depth))
        if found is None:
            yield _not_there(url, expected=bool(subject.expect))
            return
        files, free = found
        deep = f", {subject.depth} folders deep" if subject.depth != DEPTH else ""
        total = f"{several(len(files), 'file')}, {bytes_in_words(sum(files.values()))}"
        yield ok(f"{url}: {total}{deep}", details=tree(files))
        for pattern in subject.expect:
            fit = [size for path, size in files.items() if fnmatch.fnmatch(path, pattern)]
            there = ", ".join(sorted(files)[:MOST_SHOWN]) or "nothing"
            said = f"{pattern}: {several(len(fit), 'file')}, {bytes_in_words(sum(fit))}"
            missing = f"nothing below {url} is {pattern}; there is: {there}"
            correct = f"correct --expect '{pattern}', or fetch what is missing"
            expected = ok(said) if fit else failed(missing, advice=correct)
            yield replace(expected, check="expected files")
        doing = "writing checkpoints"
        write_s, sync_s, read_s = apart(WRITE_LIMIT_S, lambda: _write(url))
        written, synchronised, read = (
            f"{bytes_in_words(TRIAL_BYTES / max(seconds, 1e-6))}/s"
            for seconds in (write_s, write_s + sync_s, read_s)
        )
        speed = (
            f"written at {written}, synchronised in {seconds_in_words(sync_s)} "
            f"({synchronised} together), read back at {read}"
        )
        sizes: Counter[str] = Counter()  # by checkpoint: a file, or a folder with its content
        for path, size in files.items():
            sizes[path.split("/")[0]] += size
        if largest := max(sizes.values(), default=0):
            takes = seconds_in_words(largest / TRIAL_BYTES * (write_s + sync_s))
            speed += f"; at this rate saving {bytes_in_words(largest)} takes {takes}"
        # the previous checkpoint is removed after the next one is written
        if free is not None and free < 2 * largest:
            left = f"{bytes_in_words(free)} are left, less than two checkpoints take; {speed}"
            clean = f"du -sh {quote(url)}/*"
            yield failed(left, clean, advice="free some space:", check=doing)
        else:
            yield ok(speed, doing)
    except Exception as error:  # noqa: BLE001 - each kind of store has its own errors
        if isinstance(error, ImportError):
            needed = error.name or "fsspec"
            said = f"{url} needs {needed}, which is not installed"
            yield warning(said, f"pip install {needed}")
            return
        kind = "" if isinstance(error, NoAnswerFromStorage) else f"{type(error).__name__}: "
        advice = "name another place: --checkpoints, or see its credentials and rights"
        yield failed(f"{url} cannot be used ({kind}{error})", advice=advice, check=doing)


def _not_there(url: str, *, expected: bool) -> Finding:
    sentence = f"{url} is not there: a first run makes it, a resumed one finds nothing"
    commands, advice = [], "correct its spelling, or leave it to the first run"
    if REMOTE.match(url):
        sentence = (
            f"{url} was not looked at: it is not a folder here, and only rclone knows remotes"
        )
        advice = "name it as fsspec does: s3://BUCKET/PATH; to see what is there:"
        commands = [f"rclone lsf {quote(url)}"]
    elif "://" not in url:
        commands, advice = [f"mkdir -p {quote(url)}"], "correct its spelling, or:"
    return (failed if expected else warning)(sentence, *commands, advice=advice)


def _look(url: str, depth: int) -> tuple[dict[str, int], int | None] | None:
    """Return file sizes by relative path, and free bytes if known; None if nothing is there."""
    import fsspec

    system, root = fsspec.core.url_to_fs(url)
    if not system.exists(root):
        return None
    listed = system.find(root, maxdepth=depth, detail=True)
    start = len(str(root).rstrip("/")) + 1
    files = {path[start:]: int(entry.get("size") or 0) for path, entry in listed.items()}
    return files, shutil.disk_usage(root).free if "file" in system.protocol else None


def _write(url: str) -> tuple[float, float, float]:
    """Return the seconds for writing, synchronising and reading back."""
    import fsspec

    system, root = fsspec.core.url_to_fs(url)
    trial, data = f"{str(root).rstrip('/')}/hangcheck-doctor-{os.getpid()}", os.urandom(TRIAL_BYTES)
    moments = [time.monotonic()]
    try:
        with system.open(trial, "wb") as file:
            file.write(data)
            file.flush()
            moments.append(time.monotonic())
            if "file" in system.protocol:
                os.fsync(file.fileno())
        moments.append(time.monotonic())
        if system.cat_file(trial) != data:
            raise OSError("what was read is not what was written")
        moments.append(time.monotonic())
        write_s, sync_s, read_s = (after - before for before, after in pairwise(moments))
        return write_s, sync_s, read_s
    finally:
        if system.exists(trial):
            system.rm_file(trial)


def tree(files: Mapping[str, int]) -> tuple[str, ...]:
    """Draw files as a tree with sizes at the right; long folders are shortened."""

    def branches(files: Mapping[str, int], indent: str = "") -> Iterator[str]:
        inside: dict[str, dict[str, int]] = {}
        for path, size in files.items():
            name, slash, rest = path.partition("/")
            inside.setdefault(name + slash, {})[rest] = size
        # sort numbers of any length by value: step_9 before step_10
        names = sorted(inside, key=lambda name: re.sub(r"\d+", lambda n: n[0].zfill(20), name))
        # the last one is the newest step
        for name in names if len(names) <= 6 else [*names[:5], "", names[-1]]:
            if not name:
                yield f"{indent}... {len(names) - 6} more"
                continue
            found = inside[name]
            count = f"{several(len(found), 'file')}, " if name.endswith("/") else ""
            size_in_all = f"{count}{bytes_in_words(sum(found.values()))}"
            yield f"{indent}{name:<{NAME_WIDTH - len(indent)}}  {size_in_all}"
            if name.endswith("/"):
                yield from branches(found, indent + "  ")

    lines = list(branches(files))
    if len(lines) > MOST_LINES:
        lines[MOST_LINES:] = [f"... {several(len(lines) - MOST_LINES, 'more line')}"]
    return tuple(lines)


@check(
    "storage",
    'an incomplete remote fails late: "XML syntax error" where the endpoint is none of S3, '
    '"directory not found" where bucket or path are not those that were written',
)
def rclone_remotes(subject: Subject) -> Iterator[Finding]:
    """Each block of rclone.conf: stray lines, type, provider, endpoint, credentials."""
    used = subject.uses("rclone") or bool(REMOTE.match(subject.checkpoints or ""))
    if subject.command and not used:
        return
    environment = subject.environment
    home = Path(environment.get("HOME", "~")).expanduser()
    configs = Path(environment.get("XDG_CONFIG_HOME") or home / ".config")  # rclone.org/docs
    file = Path(environment.get("RCLONE_CONFIG") or configs / "rclone" / "rclone.conf")
    try:
        text = beginning(file).decode(errors="replace")
    except FileNotFoundError:
        return
    except (OSError, NoAnswerFromStorage) as error:
        yield warning(f"{file} cannot be read: {error}", f"ls -l {file}")
        return
    worst, problems = failed if used else warning, 0
    lines = [line.strip() for line in text.splitlines()]  # else some continue the line before
    remotes: dict[str, dict[str, str]] | None = None
    rclone = shutil.which("rclone", path=environment.get("PATH"))
    with suppress(OSError, ValueError, subprocess.SubprocessError):
        if rclone is not None:
            ran = subprocess.run(
                [rclone, "config", "dump", "--ask-password=false", "--config", str(file)],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=3.0,
                check=True,
                env=dict(environment),
            )
            remotes = json.loads(ran.stdout)
    if remotes is None and ENCRYPTED not in text:
        parser = configparser.ConfigParser(
            default_section="", interpolation=None, strict=False, comment_prefixes=("#", ";")
        )
        parser.optionxform = str  # type: ignore[assignment,method-assign] # keep the case of names
        try:
            parser.read_string("\n".join([f"[{NO_BLOCK}]", *lines]))  # for lines before the first
        except configparser.ParsingError as error:
            for number in (number - 1 for number, _ in error.errors):
                problems += 1
                bad = "rclone cannot parse this line, and so reads nothing at all"
                yield worst(f"{file}:{number}: {bad}", advice=f"remove line {number}")
        remotes = {name: dict(parser[name]) for name in parser.sections() if name != NO_BLOCK}
    for name, values in (remotes or {}).items():
        number = next((at for at, line in enumerate(lines, 1) if line == f"[{name}]"), 0)
        for sentence, corrections, sure in _problems(values, environment, home):
            problems += 1
            block = "\n".join([f"[{name}]", *(f"{key} = {it}" for key, it in corrections.items())])
            report = worst if sure else warning
            place = f"{file}:{number}: [{name}]"
            yield report(f"{place} {sentence}", block, advice="have these lines there:")
    if remotes and not problems:
        yield ok(f"complete in {file}: {', '.join(remotes)}")


def _problems(
    values: Mapping[str, str], environment: Mapping[str, str], home: Path
) -> Iterator[tuple[str, dict[str, str], bool]]:
    """Yield each problem of a remote, lines that correct it, and whether it is certain."""
    if "type" not in values:
        yield "has no type", {"type": "s3"}, True
    if values.get("type") != "s3":
        return
    if "provider" not in values:
        yield "has no provider", {"provider": "Other"}, True
    if values.get("provider", "AWS") != "AWS" and not values.get("endpoint"):
        yield "has no endpoint", {"endpoint": "https://ADDRESS-OF-THE-STORE"}, True
    if values.get("env_auth", "false").lower() == "true":
        # a role of the machine would do, too, and is not asked for
        names = ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE")
        seen = any(name in environment for name in names)
        if not (seen or (home / ".aws" / "credentials").exists()):
            sentence = "has env_auth, and no credentials are in the environment"
            yield sentence, {"env_auth": "false", **KEYS}, False
    elif not values.get("access_key_id"):
        yield "has no access_key_id: only what is public can be read", KEYS, False
