"""``from_pretrained`` of transformers: models, tokenizers and processors.

A model's weights count as progress one by one, as transformers' own progress bars do.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from lightning_hangcheck.hooks.instrument.numbered import passed
from lightning_hangcheck.hooks.instrument.places import in_section, is_outermost
from lightning_hangcheck.hooks.instrument.wrapping import Call, wrap
from lightning_hangcheck.hooks.pretrained.loading_seams import heard
from lightning_hangcheck.hooks.pretrained.shard_progress import ShardProgress
from lightning_hangcheck.hooks.pretrained.source import Source
from lightning_hangcheck.recorder.recording import current

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

UNSEEN = Source(name="", kind="folder", offline=True)


def instrument(module: ModuleType) -> None:
    """Watch what the classes of this module have of it.

    Each AutoModel has copies of these methods (auto_factory.py, copy_func), so each is wrapped.
    """
    for owner in [one for one in vars(module).values() if isinstance(one, type)]:
        if owner.__module__ != module.__name__ or "from_pretrained" not in vars(owner):
            continue
        if "Tokenizer" in owner.__name__ or "Processor" in owner.__name__:
            wrap(owner, "from_pretrained", _tokenizer)
        elif "Model" in owner.__name__:
            wrap(owner, "from_pretrained", _loading_model)
            wrap(owner, "from_config", _configured_model)


def _named(what: str) -> Callable[[Call], str]:
    """Name a section after the class whose class method is called."""
    return lambda call: f"{what} ({call.instance.__name__})"


_tokenizer = in_section("tokenizer", _named("tokenizer from_pretrained"), then=lambda _: passed(4))
_configured_model = in_section("model", _named("model from_config"), then=lambda _: passed(5))
_title = _named("model from_pretrained")
_model = in_section("model", _title, then=lambda _: passed(5))


@contextmanager
def _loading_model(call: Call) -> Iterator[None]:
    recorder = current()
    progress = ShardProgress(UNSEEN, recorder.say, recorder.heart.beat)
    hearing = heard(progress) if is_outermost("model", _title(call)) else nullcontext()
    with _model(call), hearing:
        yield
