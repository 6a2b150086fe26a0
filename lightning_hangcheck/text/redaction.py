"""Keeps secrets inside the process: out of files, pages and the console.

A name may show that its value is a secret; a value may look like a secret by itself.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import pairwise

TYPE_CHECKING = False  # typing takes 4 ms
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Literal

    Secrecy = Literal["surely", "perhaps", "no"]
    """``perhaps``: the value is a secret only if it looks like one."""


_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
# ends of words, and whole words: as patterns they would take a rank 0.3 ms at its start
_STRONG_ENDS = (
    *("secret", "password", "passphrase", "passwd", "authorization"),
    *("apikey", "accesskey", "privatekey", "authkey", "wandbkey"),
)
_STRONG = frozenset({"passcode", "credential", "cred"})
_STRONG_BEFORE_KEY = frozenset({"api", "access", "secret", "private"})
_WEAK_ENDS = ("token", "auth")
_WEAK = frozenset(
    {"pass", "userpass", "dbpass", "mypass", "sshpass", "rootpass", "adminpass", "httppass"}
    | {"ftppass", "pw", "pwd", "pat", "cookie", "cookies", "jwt", "bearer", "key", "keys", "sig"}
    | {"signature", "notify"}
)
# alone, these have other meanings too: a key of a dictionary, the working folder, a pattern
_AMBIGUOUS_ALONE = frozenset({"key", "keys", "pwd", "pat", "sig", "signature"})
_SIGNATURES = ("sig", "signature")
"""Secret in a signed address, as it gives access; not secret as the signature of a function."""
_SECRET_IN_NUMBERS = frozenset({"access", "api", "auth", "bearer", "hf", "refresh", "secret"})
# words before a token of a vocabulary, a pass over data, a key of a table; compiled on rare use
_ORDINARY_BEFORE = {
    "token": (
        r"bos|eos|pad|unk|mask|sep|cls|bot|eot|image|video|audio|special|next|first|last|stop"
        r"|start|end|begin|new|prev|previous|current|per|each|num|n|max|min|sub|class|decoder"
    ),
    "pass": (
        r"forward|backward|single|first|second|last|next|low|high|band|all|one|two|multi|per|by"
        r"|each|num|n|max"
    ),
    "key": (
        r"sort|primary|foreign|cache|text|image|label|target|input|output|dict|group|partition"
        r"|metric|column|state|index|query|config|cfg|data|dataset|batch|feature|field|json|map"
        r"|lookup|prompt|response|sample|split|loss|monitor|store|rank|missing|unexpected|public"
        r"|self|args|item|row|start|stop|parameter|param|weight|module|layer"
    ),
}
_SAYS_NOTHING = frozenset({"true", "false", "none", "null", "yes", "no", "on", "off"})
_RANDOM_AT_LEAST = 12
LOOKED_AT = 80  # Characters of a value that are examined
# compiled by `re` on first use, as few starts need them
_PIECE = r"[^\W_]+"
_UUID = r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_UUID_LENGTH = 36
_CHANGE = r"(?<=[a-z])(?=[A-Z0-9])|(?<=[A-Z])(?=[0-9])|(?<=[0-9])(?=[A-Za-z])"


@lru_cache(maxsize=4096)
def telling(name: str, *, in_prose: bool = False) -> Secrecy:
    """Judge by a name, such as ``--wandb_key``, ``X-Api-Key`` or ``trainer.token``.

    A name ``in_prose`` may be a word of a sentence: ``expected token: EOS``.
    """
    words = [word.lower() for word in _WORD.findall(name)]
    if not words:
        return "no"
    strong = any(
        first in _STRONG_BEFORE_KEY and second in ("key", "keys")
        for first, second in pairwise(words)
    )
    if strong or any(map(_is_strong, (word.removesuffix("s") for word in words))):
        return "surely"
    before, last = ["", *words][-2:]
    weak = before in _SECRET_IN_NUMBERS if last == "tokens" else _is_weak(last)
    if weak and before:
        singular = "key" if last == "keys" else last
        ordinary = _ORDINARY_BEFORE.get(singular)
        is_ordinary = ordinary is not None and re.fullmatch(ordinary, before) is not None
        return "perhaps" if is_ordinary or singular in _SIGNATURES else "surely"
    if weak:
        ambiguous = last in _AMBIGUOUS_ALONE and not name.startswith("-")
        return "perhaps" if in_prose or ambiguous else "surely"
    single_letter_flag = len(name) == 2 and name.startswith("-")
    inside = any(map(_is_weak, words[:-1]))
    return "perhaps" if inside or single_letter_flag else "no"


def _is_strong(word: str) -> bool:
    return word.endswith(_STRONG_ENDS) or word in _STRONG


def _is_weak(word: str) -> bool:
    return word.endswith(_WEAK_ENDS) or word in _WEAK


def is_secret(secrecy: Secrecy, value: str) -> bool:
    """Whether a value, apart from its quotes, is secret, given the secrecy of its name."""
    # ``True``, ``None`` and the like are never secrets: ``use_auth_token=True`` stays readable.
    bare = value.strip(" \t\r\n\"'()[]{}<>,;.")
    if secrecy == "no" or not bare or bare.lower() in _SAYS_NOTHING:
        return False
    return secrecy == "surely" or looks_random(bare)


def looks_random(value: str) -> bool:
    """Whether letters and digits alternate as in keys, but not in words, dates or versions."""
    # In random text nearly every second character is of another kind (capital, small, digit) than
    # the one before, not counting ``Ab``; one in four is required. Paths are first split into
    # names, so that ``gpt2-medium/checkpoint-12000`` stays.
    head = value[:LOOKED_AT]
    return (len(head) == _UUID_LENGTH and re.fullmatch(_UUID, head) is not None) or any(
        len(piece) >= _RANDOM_AT_LEAST and 4 * len(re.findall(_CHANGE, piece)) >= len(piece)
        for piece in re.findall(_PIECE, head)
    )


HIDDEN = "[redacted]"

# Shapes as published by the services: wandb (40 hex, wandb_v1_), Hugging Face, OpenAI, Anthropic,
# Stripe, AWS, GitHub, GitLab, Slack, Google, NVIDIA, Groq, Replicate, npm, PyPI, SendGrid, JSON web
# tokens (also only the header), PEM private keys. No pattern may fail after a long match: the match
# would be tried again from every later start.
_SHAPES = re.compile(
    r"(?<![0-9A-Za-z])(?:"
    r"[0-9a-fA-F]{40}(?![0-9A-Za-z])"
    r"|wandb_v\d_\w{16,}"
    r"|hf_[0-9A-Za-z]{16,}"
    r"|sk-[\w-]{16,}|[rs]k_(?:live|test)_\w{16,}"
    r"|(?:AKIA|ASIA)[0-9A-Za-z]{16,}"
    r"|gh[pousr]_[0-9A-Za-z]{16,}|github_pat_\w{16,}"
    r"|glpat-[\w-]{16,}"
    r"|xox[a-z]-[\w-]{10,}|hooks\.slack\.com/services/[\w/]{10,}"
    r"|AIza[\w-]{30,}|ya29\.[\w-]{16,}"
    r"|nvapi-[\w-]{16,}|gsk_\w{16,}|r8_\w{16,}|npm_\w{16,}|pypi-[\w-]{16,}|SG\.[\w-]{16,}[\w.-]*"
    r"|eyJ[\w-]{8,}(?:\.[\w-]*){0,2}"
    r")"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
)
_IN_URL = re.compile(r"(?<=://)[^/\s@:]*:[^/\s]*@")
_BEARER = re.compile(r"(?i)\b(bearer\s+)[\w.~+/=-]{16,}")
# A name and what joins a value to it: = and the like, a colon, a comma within quotes, and a blank
# after a flag. All name characters are matched at once, so each is examined once.
_NAMED = re.compile(
    r"(?<![\w.-])(?P<name>(?P<dash>-)?[\w.-]+)(?![\w.-])(?:"
    r"(?P<assigned>(?:\\{0,7}[\"']\]?)?\s*(?:=>|[:!=]?=)\s*)"
    r"|(?P<keyed>\\{0,7}[\"']\s*:\s*)"
    r"|(?P<header>\s*:(?![:/])[ \t]*)"
    r"|(?P<listed>\\{0,7}[\"']\s*,\s*)"
    r"|(?P<apart>(?(dash)[ \t]+|(?!)))"
    r")"
)
_PAIR = re.compile(r"\(\w?\\{0,7}[\"']\Z")
_NEAR = 10
_LONGEST_NAME = 200  # the end of a longer name says the most
_QUOTES = "bBrRuUfF\\\"'"
_OPENING_QUOTE = re.compile(r"(?:[\w.]{1,60}\()?[bBrRuUfF]{0,2}(?P<quote>\\{0,7}[\"'])")
_BARE = re.compile(r"[^\s\"',;&]+")
_REST_OF_LINE = re.compile(r"[^'\"\n]+")
_ENCLOSED = re.compile(r"[\[({]")
_BRACKET = re.compile(r"[\[({\])}]")
_WHOLE_LINE_WORDS = ("authorization", "cookie")
_MOST_ROUNDS = 8
"""Hiding one secret may uncover the shape of another; more rounds than this are no accident."""


def redact_text(text: str) -> str:
    """Replace what looks like a secret by ``[redacted]``; a second call changes nothing."""
    for _ in range(_MOST_ROUNDS):
        before = text
        text = _SHAPES.sub(HIDDEN, _IN_URL.sub(f"{HIDDEN}@", text))
        text = _redact_named(_BEARER.sub(rf"\1{HIDDEN}", text))
        if text == before:
            break
    return text


def redact_value(name: str, value: str) -> str:
    """Hide a value whose name shows that it is secret; else hide secrets inside the value."""
    return HIDDEN if is_secret(telling(name), value) else redact_text(value)


def redact_values(named: Mapping[str, str]) -> dict[str, str]:
    """Redact an environment, or variables: by their names, and inside all values."""
    return {name: redact_value(name, value) for name, value in named.items()}


def _redact_named(text: str) -> str:
    shown: list[str] = []
    done = at = 0
    while match := _NAMED.search(text, at):
        at = match.end()
        secrecy = _secrecy_of(match, text)
        if secrecy == "no":
            continue
        start, end = _value_at(text, at, match["name"], secrecy)
        if start < end and is_secret(secrecy, text[start:end]):
            shown += (text[done:start], HIDDEN)
            done = at = end
    return "".join((*shown, text[done:]))


def _secrecy_of(match: re.Match[str], text: str) -> Secrecy:
    """Judge a name in its context."""
    how, behind = match.lastgroup, text[match.end() : match.end() + _NEAR].lstrip(_QUOTES)
    if match["dash"] and how in ("apart", "listed") and behind.startswith("-"):
        return "no"  # a flag without a value: the next flag follows
    if how == "listed" and not match["dash"]:
        before = text[max(0, match.start() - _NEAR) : match.start()]
        if not _PAIR.search(before):
            return "no"
    return telling(match["name"][-_LONGEST_NAME:], in_prose=how == "header")


def _value_at(text: str, at: int, name: str, secrecy: Secrecy) -> tuple[int, int]:
    """Return start and end of the value; equal if the name leaves it open and it looks harmless."""
    # Of a value that is only examined, no more is read than needed.
    if text.startswith(HIDDEN, at):
        bare = _BARE.match(text, at + len(HIDDEN))
        return at, bare.end() if bare else at + len(HIDDEN)
    quoted = _OPENING_QUOTE.match(text, at)
    if secrecy == "perhaps":
        start = quoted.end() if quoted else at
        near = _BARE.match(text, start, start + LOOKED_AT)
        bare = _BARE.match(text, start) if near and looks_random(near[0]) else None
        return start, bare.end() if bare else start
    if quoted:
        # py-spy does not escape inner quotes: what follows a quote shows whether it ends the value;
        # if none ends it, all that follows is hidden
        quote = re.escape(quoted["quote"])
        ends = re.compile(rf"(?<!\\){quote}(?=[\s,;:)\]}}>&|\\\"']|\Z)")
        found = ends.search(text, quoted.end())
        return quoted.end(), found.start() if found else len(text)
    if _ENCLOSED.match(text, at):
        depth = 0
        for bracket in _BRACKET.finditer(text, at):
            depth += 1 if bracket[0] in "[({" else -1
            if depth == 0:
                return at, bracket.end()
        return at, len(text)
    whole_line = any(word in name.lower() for word in _WHOLE_LINE_WORDS)
    bare = (_REST_OF_LINE if whole_line else _BARE).match(text, at)
    return at, bare.end() if bare else at
