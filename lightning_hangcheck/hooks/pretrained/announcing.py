"""What is said before a load begins: what, where from, where to, and how long it may take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightning_hangcheck.hooks.pretrained.amounts import in_words, several

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lightning_hangcheck.hooks.pretrained.source import Source


def announcement(loader: str, source: Source, named: Mapping[str, Any], is_model: bool) -> str:
    """One line about a load.

    Args:
        loader: The class whose ``from_pretrained`` will be called.
        source: Where from.
        named: Its keyword arguments.
        is_model: Weights are loaded, not only a tokenizer.
    """
    parts = [f"{loader}.from_pretrained will read {_where(source)}"]
    if is_model and source.weight_files:
        files = several(len(source.weight_files), "weight file")
        parts.append(f"{files}, {in_words(source.size)}")
    if is_model:
        parts.append(f"device_map={named.get('device_map')!r}")
        parts.append(f"dtype={_dtype(named)}")
    parts.append("offline: the hub is not asked" if source.offline else "online")
    return "; ".join(parts)


def expectation(source: Source, rate: float | None) -> str | None:
    """How long reading may take, as an estimate; None where nothing is known.

    Args:
        source: Where from.
        rate: Bytes a second, measured on a sample.
    """
    if not rate or not source.size:
        return None
    return (
        f"reading may take about {source.size / rate:.0f} s (an estimate: {in_words(source.size)} "
        f"at {in_words(rate)}/s, measured just now on a sample of the files)"
    )


def _where(source: Source) -> str:
    if source.kind == "folder":
        return f"the local folder {source.name}"
    if source.kind == "cache":
        return f"{source.name} from the cache of the hub ({source.folder})"
    return f"{source.name} from the hub (no folder here has this name, and the cache has it not)"


def _dtype(named: Mapping[str, Any]) -> str:
    dtype = named.get("dtype", named.get("torch_dtype"))
    return "transformers' default" if dtype is None else str(dtype)
