"""The remotes of rclone: is each block of its configuration complete, and nothing pasted amiss?"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from lightning_hangcheck.doctor.check import Check
from lightning_hangcheck.doctor.places import beginning, is_used
from lightning_hangcheck.files.apart import NoAnswerFromStorage
from lightning_hangcheck.text.redaction import redact_value

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lightning_hangcheck.doctor.subject import Subject

NAME = "rclone remotes"
READ_LIMIT_S = 2.0
ENCRYPTED = "RCLONE_ENCRYPT_V"
SETTING = re.compile(r"(?:`(?P<quoted>[^`]+)`|(?P<plain>[^`=:][^=:]*?))\s*[=:]\s*(?P<value>.*)")
"""As rclone 1.75 takes a line apart: backticks quote a name or a value."""
REMOTE = re.compile(r"[\w.+@-][\w.+@ -]*:(?!//)")
"""How rclone names a place: ``remote:path``, which fsspec takes for a file of that name."""
CREDENTIALS = ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE")
"""Any of them lets ``env_auth`` find a key; so does a role of the machine, which is not seen."""


class Remote(NamedTuple):
    """A block of the configuration.

    Attributes:
        line: On which it begins, from 1.
        values: By key.
        stray: Lines that belong to no configuration, by their numbers.
    """

    name: str
    line: int
    values: dict[str, str]
    stray: dict[int, str]


class _Problem(NamedTuple):
    line: int
    sentence: str
    corrections: dict[str, str]
    status: Literal["warning", "failed"] = "failed"


def remotes_complete(subject: Subject) -> tuple[Check, ...]:
    """Read rclone's configuration, where there is one; its secrets are neither kept nor shown.

    Args:
        subject: The run; if its command is given and does not use rclone, nothing is asked.
    """
    used = is_used(subject, "rclone") or bool(REMOTE.match(subject.checkpoints or ""))
    if subject.command and not used:
        return ()
    file = config_file(subject.environment)
    try:
        text = beginning(file, READ_LIMIT_S).decode(errors="replace")
    except FileNotFoundError:
        return ()
    except (OSError, NoAnswerFromStorage) as error:
        return (Check(NAME, "warning", f"{file} cannot be read: {error}", f"ls -l {file}"),)
    if ENCRYPTED in text:
        return ()  # nothing of it can be seen
    remotes = read_remotes(text)
    found = []
    for remote in remotes:
        for one in _problems(remote, subject.environment):
            status = one.status if used else "warning"
            sentence = f"{file}:{one.line}: {one.sentence}"
            found.append(Check(NAME, status, sentence, _corrected(remote, one)))
    names = ", ".join(remote.name for remote in remotes) or "none"
    return tuple(found) or (Check(NAME, "ok", f"complete in {file}: {names}"),)


def config_file(environment: Mapping[str, str]) -> Path:
    """Return the file that rclone reads (rclone.org/docs, --config)."""
    home = Path(environment.get("HOME", "~")).expanduser()
    configs = Path(environment.get("XDG_CONFIG_HOME") or home / ".config")
    return Path(environment.get("RCLONE_CONFIG") or configs / "rclone" / "rclone.conf")


def read_remotes(text: str) -> list[Remote]:
    """Take a configuration apart; what stands before its first block belongs to a nameless one."""
    remotes = [Remote("", 1, {}, {})]
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.strip()
        setting = SETTING.fullmatch(words)
        if not words or words[0] in "#;":
            continue
        if words.startswith("[") and words.endswith("]"):
            remotes.append(Remote(words[1:-1], number, {}, {}))
        elif setting is None or (setting["value"][:1] == "`" and "`" not in setting["value"][1:]):
            remotes[-1].stray[number] = words
        else:
            value = setting["value"]
            value = value[1:].partition("`")[0] if value.startswith("`") else value
            remotes[-1].values[setting["quoted"] or setting["plain"]] = value
    return [one for one in remotes if one.name or one.stray]


def _problems(remote: Remote, environment: Mapping[str, str]) -> Iterator[_Problem]:
    for number in remote.stray:
        yield _Problem(number, "rclone cannot parse this line, and so reads nothing at all", {})
    if not remote.name:
        return
    if "type" not in remote.values:
        yield _Problem(remote.line, f"[{remote.name}] has no type", {"type": "s3"})
    elif remote.values["type"] == "s3":
        yield from _problems_of_s3(remote, environment)


def _problems_of_s3(remote: Remote, environment: Mapping[str, str]) -> Iterator[_Problem]:
    values = remote.values
    if "provider" not in values:
        yield _Problem(remote.line, f"[{remote.name}] has no provider", {"provider": "Other"})
    if values.get("provider", "AWS") != "AWS" and not values.get("endpoint"):
        sentence = f"[{remote.name}] has no endpoint"
        yield _Problem(remote.line, sentence, {"endpoint": "https://ADDRESS-OF-THE-STORE"})
    by_environment = values.get("env_auth", "false").lower() == "true"
    home = Path(environment.get("HOME", "~")).expanduser()
    if by_environment and not any(name in environment for name in CREDENTIALS):
        if not (home / ".aws" / "credentials").exists():
            sentence = f"[{remote.name}] has env_auth, and no credentials are in the environment"
            yield _Problem(remote.line, sentence, {"env_auth": "false", **_KEYS}, "warning")
    elif not by_environment and not values.get("access_key_id"):
        sentence = f"[{remote.name}] has no access_key_id: only what is public can be read"
        yield _Problem(remote.line, sentence, _KEYS, "warning")


_KEYS = {"access_key_id": "YOUR-KEY", "secret_access_key": "YOUR-SECRET"}


def _corrected(remote: Remote, problem: _Problem) -> str:
    """The block as it would be right, to be compared with what is there."""
    values = {name: redact_value(name, value) for name, value in remote.values.items()}
    values = dict(sorted((values | problem.corrections).items(), key=lambda one: one[0] != "type"))
    if not remote.name:
        return f"remove line {problem.line}"
    return "\n".join([f"[{remote.name}]", *(f"{name} = {value}" for name, value in values.items())])
