"""Datasets and data loaders: their creation, and the first batch of each process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.hooks.instrument.places import in_section
from lightning_hangcheck.hooks.instrument.wrapping import unwrap, wrap

if TYPE_CHECKING:
    from types import ModuleType


def instrument(module: ModuleType) -> None:
    """Watch ``DataLoader``, or ``load_dataset`` and ``load_from_disk`` of datasets."""
    for name in ("load_dataset", "load_from_disk"):
        wrap(module, name, in_section("dataset", f"datasets.{name}"))
    if not hasattr(module, "DataLoader"):
        return
    wrap(module.DataLoader, "__init__", in_section("DataLoader constructor"))
    iterator = module._BaseDataLoaderIter  # noqa: SLF001 - what every iterator derives from
    # a step must not pay for what only its first batch can tell, so the watcher goes with that
    wrap(
        iterator,
        "__next__",
        in_section("first batch of a DataLoader", then=lambda _: unwrap(iterator, "__next__")),
    )
