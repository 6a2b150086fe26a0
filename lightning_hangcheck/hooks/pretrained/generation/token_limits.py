"""Limits on tokens that keep a debug run finite: how many are read, and how many are made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from lightning_hangcheck.errors import BadUsage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from transformers import GenerationConfig


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How long a debug run may get.

    Attributes:
        max_new_tokens: Most new tokens of a sequence, whatever else is asked for.
        max_length: Most tokens of a prompt; the tokenizer cuts it on its truncation side.

    Raises:
        BadUsage: One of them is no positive number.
    """

    max_new_tokens: int = 512
    max_length: int = 2048

    def __post_init__(self) -> None:
        """Refuse what would generate nothing."""
        if self.max_new_tokens < 1 or self.max_length < 1:
            raise BadUsage(f"{self} leaves nothing to generate", "write numbers above 0")


def limits_of(debug: bool | Limits) -> Limits | None:
    """Return the limits that a value of ``debug`` means, None for none."""
    if isinstance(debug, Limits):
        return debug
    return Limits() if debug else None


def asked_new_tokens(
    default: GenerationConfig | None, named: Mapping[str, Any], prompt_length: int
) -> int | None:
    """How many new tokens a call of ``generate`` may make; None where nothing says it.

    Args:
        default: What counts where the arguments have no generation config.
        named: Arguments of ``generate``.
        prompt_length: Tokens that ``max_length`` counts too.
    """
    config = named.get("generation_config") or default
    asked = _new_tokens(named, prompt_length)
    if asked is None and config is not None:
        asked = _new_tokens(vars(config), prompt_length)
    return asked


def beyond(
    limits: Limits | None,
    default: GenerationConfig | None,
    named: Mapping[str, Any],
    prompt_length: int,
) -> int | None:
    """How many new tokens a call of ``generate`` asks for, if that is more than the limit.

    Args:
        limits: None for no limit.
        default: What counts where the arguments have no generation config.
        named: Arguments of ``generate``.
        prompt_length: Tokens that ``max_length`` counts too.
    """
    asked = asked_new_tokens(default, named, prompt_length)
    if limits is None or asked is None or asked <= limits.max_new_tokens:
        return None
    return asked


def capped(named: Mapping[str, Any], limits: Limits) -> dict[str, Any]:
    """Arguments of ``generate`` that make no more new tokens than the limit."""
    rest = {name: value for name, value in named.items() if name != "max_length"}
    return {**rest, "max_new_tokens": limits.max_new_tokens}


def cut_in_words(asked: int, limits: Limits) -> str:
    """Say that new tokens were capped."""
    return (
        f"generate: {asked} new tokens were asked for, {limits.max_new_tokens} will be made at "
        "most (limit of a debug run: Limits(max_new_tokens=...))"
    )


def _new_tokens(flags: Mapping[str, Any], prompt_length: int) -> int | None:
    if flags.get("max_new_tokens") is not None:
        return int(flags["max_new_tokens"])
    total = flags.get("max_length")
    return None if total is None else int(total) - prompt_length
