"""Would Weights & Biases ask, wait or refuse while a rank creates its logger?"""

from __future__ import annotations

import http.client
import netrc
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from lightning_hangcheck.doctor.check import Check
from lightning_hangcheck.doctor.places import is_used
from lightning_hangcheck.files.apart import NoAnswerFromStorage, apart

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lightning_hangcheck.doctor.subject import Subject

NAME = "wandb"
SERVER = "https://api.wandb.ai"
SILENT_MODES = ("disabled", "offline", "dryrun")
ANSWER_LIMIT_S = 3.0
READ_LIMIT_S = 1.0
OFFLINE = "export WANDB_MODE=offline, and later: wandb sync wandb/offline-run-*"


def wandb_ready(subject: Subject) -> tuple[Check, ...]:
    """Look at wandb's mode, whether there is a key, and whether the server answers in time.

    Asked only of a run that uses it: a variable of wandb is set, or command or script name it.

    Args:
        subject: The run.
    """
    environment = subject.environment
    if find_spec("wandb") is None or not is_used(subject, "wandb"):
        return ()
    mode = environment.get("WANDB_MODE", "online")
    if mode in SILENT_MODES or environment.get("WANDB_DISABLED", "").lower() in ("true", "1"):
        return (Check(NAME, "ok", f"WANDB_MODE is {mode}: no server is asked"),)
    server = urlsplit(environment.get("WANDB_BASE_URL") or SERVER)
    if not _has_key(environment, server.hostname or ""):
        sentence = f"there is no key for {server.hostname}: wandb asks at a terminal, or fails"
        return (Check(NAME, "warning", sentence, "wandb login, or: " + OFFLINE),)
    refusal = no_answer(server.scheme, server.hostname or "", server.port, ANSWER_LIMIT_S)
    if refusal:
        sentence = (
            f"{server.hostname} does not answer ({refusal}): creating the logger waits for it"
        )
        return (Check(NAME, "failed", sentence, OFFLINE),)
    return (Check(NAME, "ok", f"mode {mode}, a key is there, {server.hostname} answers"),)


def no_answer(scheme: str, host: str, port: int | None, time_limit_s: float) -> str | None:
    """Ask a server for anything.

    Returns:
        Why there is no answer; None where there is one, whatever it says.
    """
    kind = http.client.HTTPConnection if scheme == "http" else http.client.HTTPSConnection
    connection = kind(host, port, timeout=time_limit_s)
    try:
        connection.request("HEAD", "/")
        connection.getresponse()
    except TimeoutError:
        return f"nothing within {time_limit_s:g} s"
    except (OSError, http.client.HTTPException) as error:
        return str(getattr(error, "strerror", None) or error)
    finally:
        connection.close()
    return None


def _has_key(environment: Mapping[str, str], host: str) -> bool:
    """Whether there is one; it is neither kept nor shown."""
    if environment.get("WANDB_API_KEY"):
        return True
    file = Path(environment.get("NETRC") or Path(environment.get("HOME", "~")) / ".netrc")
    try:
        return apart(
            READ_LIMIT_S, lambda: netrc.netrc(file.expanduser()).authenticators(host) is not None
        )
    except (OSError, NoAnswerFromStorage, netrc.NetrcParseError):
        return False
