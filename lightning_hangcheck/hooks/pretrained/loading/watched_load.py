"""What goes around a load, of `load_pretrained` and of a pipeline alike.

It says before what is loaded, where from, where to, and how long that may take; then it is
followed.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from lightning_hangcheck.hooks.pretrained.attempt import attempt
from lightning_hangcheck.hooks.pretrained.loading.loading_seams import follow_loading
from lightning_hangcheck.hooks.pretrained.loading.shard_progress import ShardProgress, reading_rate
from lightning_hangcheck.hooks.pretrained.loading.source import Source, find_source
from lightning_hangcheck.hooks.pretrained.loading.traps import LoadRequest, traps
from lightning_hangcheck.recorder.sections import Section
from lightning_hangcheck.text.amounts import bytes_in_words, several
from lightning_hangcheck.time_limit import NoAnswer, within

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lightning_hangcheck.recorder.lifecycle import Recorder

Loaded = TypeVar("Loaded")
LOOK_LIMIT = 2.0  # seconds that looking at the files may take before the load begins
UNSEEN = Source(name="", kind="folder", offline=True)


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """One load, not begun yet.

    Attributes:
        name: A folder or a name of the hub.
        loader: What is called, for people.
        what: ``model``, ``tokenizer`` or ``model config``, which gives the phase.
        named: The arguments of ``from_pretrained``.
    """

    name: str
    loader: str
    what: str
    named: dict[str, Any]


def watched_load(recorder: Recorder, load: Load, work: Callable[[], Loaded]) -> Loaded:
    """Announce a load, do it in a section of its own, and hear how far it is.

    Raises:
        Exception: Whatever the work raises.
    """
    if recorder.settings.disable:
        return work()
    source = attempt("looking at the files", partial(announce, recorder, load)) or UNSEEN
    if load.what == "model":
        attempt("an estimate of the time", partial(_expect, recorder, source))
    progress = ShardProgress(source, recorder.say, recorder.beat)
    with (
        Section(recorder, f"{load.what} from_pretrained ({load.loader})"),
        follow_loading(progress),
    ):
        return work()


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
        parts.append(f"{files}, {bytes_in_words(source.size)}")
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
        f"reading may take about {source.size / rate:.0f} s (an estimate: "
        f"{bytes_in_words(source.size)} at {bytes_in_words(rate)}/s, measured just now "
        "on a sample of the files)"
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


def announce(recorder: Recorder, load: Load) -> Source:
    """Say what will be loaded and which traps its arguments walk into, within about 2 seconds.

    Returns:
        Where it will come from, as far as it was seen in time.

    Raises:
        OSError: A file cannot be looked at.
        msgspec.DecodeError: The index of the weights is damaged.
    """
    try:
        source = within(LOOK_LIMIT, partial(find_source, load.name, load.named))
    except NoAnswer:
        recorder.say(f"WARNING: the storage of {load.name} did not answer within {LOOK_LIMIT:g} s")
        return UNSEEN
    recorder.say(announcement(load.loader, source, load.named, is_model=load.what == "model"))
    if load.what != "tokenizer":
        for sentence in traps(_load_request(source, load, recorder)):
            recorder.say(f"WARNING: {sentence}")
    return source


def _expect(recorder: Recorder, source: Source) -> None:
    try:
        rate = within(LOOK_LIMIT, partial(reading_rate, source.weight_files))
    except NoAnswer:
        recorder.say(
            f"WARNING: {source.folder} is slow: a sample of the weight files was not read within "
            f"{LOOK_LIMIT:g} s"
        )
        return
    expected = expectation(source, rate)
    if expected:
        recorder.say(expected)


def _load_request(source: Source, load: Load, recorder: Recorder) -> LoadRequest:
    import transformers

    major, minor = transformers.__version__.split(".")[:2]
    return LoadRequest(
        loader=load.loader,
        source=source,
        named=load.named,
        version=(int(major), int(minor)),
        world_size=recorder.identity.world_size or 1,
    )
