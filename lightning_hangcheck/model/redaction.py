"""Secrets do not leave a process: not in a journal, not on a page, not on the console.

Recognised are values by their shape (the published prefixes of common tokens) and by the name in
front of them. A name counts by its words, so ``HF_TOKEN`` is hidden and ``TOKENIZERS_PARALLELISM``
is not; ``KeyError: 'layer1'`` stays readable.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

HIDDEN = "[redacted]"

# bos_token and its like are words of a vocabulary, max_tokens is a number
_TELLING_NAME = (
    r"(?!(?:bos|eos|pad|unk|mask|sep|cls)_token)"
    r"\w*?(?:api_?key|_key|secret|password|passwd|credentials?|token|auth)"
)
# Shapes as published by the services: wandb (40 hex, wandb_v1_), Hugging Face, OpenAI, Anthropic,
# AWS, GitHub, GitLab, Slack, Google, JSON web tokens, PEM private keys.
_SHAPES = re.compile(
    r"(?<![0-9A-Za-z])(?:"
    r"[0-9a-fA-F]{40}(?![0-9A-Za-z])"
    r"|wandb_v\d_\w{16,}"
    r"|hf_[0-9A-Za-z]{16,}"
    r"|sk-[\w-]{16,}"
    r"|(?:AKIA|ASIA)[0-9A-Za-z]{16,}"
    r"|gh[pousr]_[0-9A-Za-z]{16,}|github_pat_\w{16,}"
    r"|glpat-[\w-]{16,}"
    r"|xox[a-z]-[\w-]{10,}"
    r"|AIza[\w-]{30,}"
    r"|eyJ[\w-]{8,}\.[\w-]+\.[\w-]*"
    r")"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
)
_IN_URL = re.compile(r"(?<=://)[^/\s@]*:[^/\s]*@")
_AUTHORIZATION = re.compile(
    r"(?i)\b(authorization\s*[:=]\s*(?!\[redacted\])(?=[^\s'\",;]))[^'\",;\n]+"
    r"|(?i:\b(bearer\s+)[\w.~+/=-]{16,})"
)
_ASSIGNED = re.compile(
    rf"(?i)(?<!\w)({_TELLING_NAME}\s*=\s*[\"']?"  # api_key=..., token = "..."
    rf"|[\"']{_TELLING_NAME}[\"']\s*:\s*[\"']"  # {{"token": "..."}}
    rf"|--(?:\w+-)*(?:key|token|secret|password|passwd|credentials?)(?:=|\s+)[\"']?)"
    r"(?!\[redacted\])[^\s\"',;&]+"
)
_STRONG_NAME = re.compile(r"API_?KEY|SECRET|PASSWORD|PASSWD|CREDENTIAL|AUTHORIZATION")
_LAST_PART = re.compile(r"(?:KEYS?|TOKEN|AUTH|PASS|PAT|COOKIE)\Z")


def redact_text(text: str) -> str:
    """Hide what looks like a secret.

    Args:
        text: Anything that is about to be shown or written.

    Returns:
        The text with ``[redacted]`` in place of secrets. Redacting twice changes nothing more.
    """
    text = _IN_URL.sub(f"{HIDDEN}@", text)
    text = _SHAPES.sub(HIDDEN, text)
    text = _AUTHORIZATION.sub(_keep_name, text)
    return _ASSIGNED.sub(_keep_name, text)


def redact_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Redact values whose name says that they are secret, and secrets within all others.

    Returns:
        The same names, in the same order.
    """
    return {
        name: HIDDEN if value and _names_a_secret(name) else redact_text(value)
        for name, value in environment.items()
    }


def _keep_name(match: re.Match[str]) -> str:
    return f"{match[match.lastindex or 0]}{HIDDEN}"


def _names_a_secret(name: str) -> bool:
    upper = name.upper()
    if _STRONG_NAME.search(upper):
        return True
    words = upper.split("_")
    return any(_LAST_PART.search(word) for word in words) or (len(words) > 1 and words[-1] == "PWD")
