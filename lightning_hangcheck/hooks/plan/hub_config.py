"""Fetches a model's config.json from the hub, or says within a limit why it cannot be had."""

from __future__ import annotations

import logging
import re
from pathlib import Path

from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.time_limit import NoAnswer, within

TIME_LIMIT_S = 15.0
_HUB_NAME = re.compile(r"[\w][\w.-]*(/[\w][\w.-]*)?")


def fetch_config(name: str, time_limit_s: float = TIME_LIMIT_S) -> Path:
    """Return the path of a hub model's config.json, from the local cache where it is there.

    Args:
        name: For example ``Qwen/Qwen2.5-7B-Instruct``.
        time_limit_s: Seconds after which a hub that does not answer is given up.

    Raises:
        BadUsage: No such name, no network, no permission, or no answer in time.
    """
    if not _HUB_NAME.fullmatch(name):
        raise BadUsage(f"there is no folder or file {name}", "name a folder that holds config.json")
    try:
        return within(time_limit_s, lambda: _download(name))
    except ImportError as error:
        reason = "huggingface_hub is not installed"
        raise _not_had(name, reason) from error
    except NoAnswer as error:
        raise _not_had(name, f"the hub did not answer within {time_limit_s:g} s") from error
    except (OSError, ValueError) as error:
        raise _not_had(name, _reason(error)) from error


def _download(name: str) -> Path:
    from huggingface_hub import hf_hub_download

    # it announces each of its attempts; one sentence at the end says it all
    chatter = logging.getLogger("huggingface_hub")
    before = chatter.level
    chatter.setLevel(logging.CRITICAL)
    try:
        return Path(hf_hub_download(name, "config.json"))
    finally:
        chatter.setLevel(before)


def _reason(error: Exception) -> str:
    """One line of what the hub's library says; its messages go over several."""
    words = {
        "GatedRepoError": "its owner must grant you access first",
        "RepositoryNotFoundError": "the hub has no such model, or it is private",
        "LocalEntryNotFoundError": "there is no network, and it is not in the local cache",
        "OfflineModeIsEnabled": "offline mode is on, and it is not in the local cache",
    }
    kind = type(error).__name__
    return words.get(kind, f"{kind}: {' '.join(str(error).split())[:120]}")


def _not_had(name: str, reason: str) -> BadUsage:
    return BadUsage(
        f"{name} is no folder here, and its config.json cannot be had from the hub ({reason})",
        f"where there is network: hf download {name} config.json --local-dir DIR, "
        "then: hangcheck plan DIR",
    )
