"""What goes around a load, of `load_pretrained` and of a pipeline alike."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from lightning_hangcheck.hooks.pretrained.announcing import announcement, expectation
from lightning_hangcheck.hooks.pretrained.attempt import attempt
from lightning_hangcheck.hooks.pretrained.loading_seams import heard
from lightning_hangcheck.hooks.pretrained.reading_rate import reading_rate
from lightning_hangcheck.hooks.pretrained.shard_progress import ShardProgress
from lightning_hangcheck.hooks.pretrained.source import Source, find_source
from lightning_hangcheck.hooks.pretrained.traps import Wish, traps
from lightning_hangcheck.probes.guard import NoAnswer, within
from lightning_hangcheck.recorder.sections import Section

if TYPE_CHECKING:
    from collections.abc import Callable

    from lightning_hangcheck.recorder.recording import Recorder

Loaded = TypeVar("Loaded")

LOOK_LIMIT = 2.0  # seconds that looking at the files may take before the load begins
UNSEEN = Source(name="", kind="folder", offline=True)


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """One load, not begun yet.

    Attributes:
        name: A folder or a name of the hub.
        loader: What is called, for people.
        what: ``model`` or ``tokenizer``, which gives the phase.
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
    source = attempt("looking at the files", partial(_look, recorder, load)) or UNSEEN
    progress = ShardProgress(source, recorder.say, recorder.heart.beat)
    with Section(recorder, f"{load.what} from_pretrained ({load.loader})"), heard(progress):
        return work()


def _look(recorder: Recorder, load: Load) -> Source:
    try:
        source = within(LOOK_LIMIT, partial(find_source, load.name, load.named))
    except NoAnswer:
        recorder.say(f"WARNING: the storage of {load.name} did not answer within {LOOK_LIMIT:g} s")
        return UNSEEN
    recorder.say(announcement(load.loader, source, load.named, is_model=load.what == "model"))
    if load.what == "model":
        for sentence in traps(_wish(source, load, recorder)):
            recorder.say(f"WARNING: {sentence}")
        attempt("an estimate of the time", partial(_expect, recorder, source))
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


def _wish(source: Source, load: Load, recorder: Recorder) -> Wish:
    import transformers

    major, minor = transformers.__version__.split(".")[:2]
    return Wish(
        loader=load.loader,
        source=source,
        named=load.named,
        version=(int(major), int(minor)),
        world_size=recorder.identity.world_size or 1,
    )
