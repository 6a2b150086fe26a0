"""Lightning Fabric: launch, setup, the parts of a step, barriers and checkpoints."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from lightning_hangcheck.hooks.instrument.numbered import passed
from lightning_hangcheck.hooks.instrument.places import in_section
from lightning_hangcheck.hooks.instrument.wrapping import Call, wrap
from lightning_hangcheck.recorder.recording import current

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from lightning_hangcheck.hooks.instrument.wrapping import Around
    from lightning_hangcheck.model.slugs import Phase


def instrument(module: ModuleType) -> None:
    """Watch Fabric, or the optimizer that it hands out."""
    if hasattr(module, "_FabricOptimizer") and not module.__name__.endswith("fabric.fabric"):
        wrap(module._FabricOptimizer, "step", _in_phase("optimizer_step"))  # noqa: SLF001 - no other
        return
    fabric = module.Fabric
    wrap(fabric, "__init__", in_section("Fabric constructor", then=lambda _: passed(8)))
    wrap(fabric, "launch", in_section("Fabric.launch", then=_launched))
    for name in ("setup", "setup_module", "setup_optimizers", "setup_dataloaders"):
        wrap(fabric, name, in_section("Fabric setup", f"Fabric.{name}"))
    wrap(fabric, "backward", _in_phase("backward"))
    wrap(fabric, "barrier", in_section("Fabric.barrier"))
    wrap(fabric, "save", in_section("saving", "Fabric.save of a checkpoint"))
    wrap(fabric, "load", in_section("loading", "Fabric.load of a checkpoint"))


def _launched(call: Call) -> None:
    fabric = call.instance
    current().learn_identity(fabric.global_rank, fabric.world_size, fabric.local_rank)


def _in_phase(phase: Phase) -> Around:
    """Show a part of a step on the page; the rest of the loop is the script's own."""

    @contextmanager
    def visit(call: Call) -> Iterator[None]:
        enter = current().enter_phase
        enter(phase)
        yield
        enter("training_step")

    return visit
