"""Does a name tell that its value is a secret, and does a value look like one?

The words of a name decide, split at ``_ - .`` and where a capital letter begins a word:
``HF_TOKEN``, ``hfToken`` and ``X-Api-Key`` tell, ``tokenizer``, ``monkey``, ``author`` and
``compass`` do not.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import pairwise
from typing import Literal

Secrecy = Literal["surely", "perhaps", "no"]
"""``perhaps``: only a value that looks like a secret is one."""

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_STRONG = re.compile(
    r"(?:.*(?:secret|password|passphrase|passwd)s?|passcode|credentials?|creds"
    r"|.*authorization|.*(?:api|access|private|auth|wandb)keys?)"
)
_STRONG_BEFORE_KEY = frozenset({"api", "access", "secret", "private"})
_WEAK = re.compile(
    r".*token|.*auth|pass|(?:user|db|my|ssh|root|admin|http|ftp)pass|pw|pwd|pat|cookies?|jwt"
    r"|bearer|keys?|sig|signature|notify"
)
# alone these are words of programs too: a key of a dictionary, the working folder, a pattern
_AMBIGUOUS_ALONE = frozenset({"key", "keys", "pwd", "pat", "sig", "signature"})
_SIGNATURES = ("sig", "signature")
"""Of signed addresses, which open what they name; of a function it is none."""
_SECRET_IN_NUMBERS = frozenset({"access", "api", "auth", "bearer", "hf", "refresh", "secret"})
# what makes a token a word of a vocabulary, a pass one over data, and a key one of a table
_ORDINARY_BEFORE = {
    "token": re.compile(
        r"bos|eos|pad|unk|mask|sep|cls|bot|eot|image|video|audio|special|next|first|last|stop"
        r"|start|end|begin|new|prev|previous|current|per|each|num|n|max|min|sub|class|decoder"
    ),
    "pass": re.compile(
        r"forward|backward|single|first|second|last|next|low|high|band|all|one|two|multi|per|by"
        r"|each|num|n|max"
    ),
    "key": re.compile(
        r"sort|primary|foreign|cache|text|image|label|target|input|output|dict|group|partition"
        r"|metric|column|state|index|query|config|cfg|data|dataset|batch|feature|field|json|map"
        r"|lookup|prompt|response|sample|split|loss|monitor|store|rank|missing|unexpected|public"
        r"|self|args|item|row|start|stop|parameter|param|weight|module|layer"
    ),
}
_SAYS_NOTHING = frozenset({"true", "false", "none", "null", "yes", "no", "on", "off"})
_RANDOM_AT_LEAST = 12
LOOKED_AT = 80
"""Characters of a value that are enough to tell."""
_PIECE = re.compile(r"[^\W_]+")
_UUID = re.compile(r"(?i)[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_CHANGE = re.compile(r"(?<=[a-z])(?=[A-Z0-9])|(?<=[A-Z])(?=[0-9])|(?<=[0-9])(?=[A-Za-z])")


@lru_cache(maxsize=4096)
def telling(name: str, *, in_prose: bool = False) -> Secrecy:
    """Judge a name: of a variable, a flag with its dashes, a key, a header.

    Args:
        name: ``--wandb_key``, ``X-Api-Key``, ``trainer.token``.
        in_prose: It may be a word of a sentence: ``expected token: EOS``.
    """
    words = [word.lower() for word in _WORD.findall(name)]
    if not words:
        return "no"
    if any(map(_STRONG.fullmatch, words)) or any(map(_is_strong_key, pairwise(words))):
        return "surely"
    if _ends_weakly(words):
        return _judge_alone(words[0], name, in_prose) if len(words) == 1 else _judge_last(words)
    single_letter_flag = len(name) == 2 and name.startswith("-")
    inside = any(map(_WEAK.fullmatch, words[:-1]))
    return "perhaps" if inside or single_letter_flag else "no"


def _is_strong_key(pair: tuple[str, str]) -> bool:
    return pair[0] in _STRONG_BEFORE_KEY and pair[1] in ("key", "keys")


def _ends_weakly(words: list[str]) -> bool:
    if words[-1] == "tokens":
        return len(words) > 1 and words[-2] in _SECRET_IN_NUMBERS
    return _WEAK.fullmatch(words[-1]) is not None


def _judge_alone(word: str, name: str, in_prose: bool) -> Secrecy:
    if in_prose:
        return "perhaps"
    return "perhaps" if word in _AMBIGUOUS_ALONE and not name.startswith("-") else "surely"


def _judge_last(words: list[str]) -> Secrecy:
    *_, before, last = words
    singular = "key" if last == "keys" else last
    ordinary = _ORDINARY_BEFORE.get(singular)
    is_ordinary = ordinary is not None and ordinary.fullmatch(before) is not None
    return "perhaps" if is_ordinary or singular in _SIGNATURES else "surely"


def is_secret(told: Secrecy, value: str) -> bool:
    """Judge a value by what its name tells, without its quotes.

    ``True``, ``None`` and their like are never secrets: ``use_auth_token=True`` stays readable.
    """
    bare = value.strip(" \t\r\n\"'()[]{}<>,;.")
    if told == "no" or not bare or bare.lower() in _SAYS_NOTHING:
        return False
    return told == "surely" or looks_random(bare)


def looks_random(value: str) -> bool:
    """Whether letters and digits take turns as they do in keys, and in no word, date or version.

    Of random letters and digits nearly every second one is of another kind (capital, small, digit)
    than the one before it, not counting ``Ab``; one in four is asked for. Paths are cut into their
    names first, so that ``gpt2-medium/checkpoint-12000`` stays.
    """
    head = value[:LOOKED_AT]
    return _UUID.fullmatch(head) is not None or any(
        len(piece) >= _RANDOM_AT_LEAST and 4 * len(_CHANGE.findall(piece)) >= len(piece)
        for piece in _PIECE.findall(head)
    )
