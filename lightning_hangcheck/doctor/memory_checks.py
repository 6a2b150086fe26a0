"""Checks whether the model fits into this machine's memory, with everything kept next to it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from lightning_hangcheck.doctor.check import Finding, check, failed, ok, warning
from lightning_hangcheck.doctor.data_checks import find_model
from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.files import NoAnswerFromStorage, apart
from lightning_hangcheck.look.gpu import gpu_memory
from lightning_hangcheck.look.kernel import memory_use
from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.planning.config import count_weights, find_config, read_config, read_fields
from lightning_hangcheck.planning.plan import GB, Machine, settle_use
from lightning_hangcheck.planning.planner import ANSWER, Model, make_plan
from lightning_hangcheck.text.shown import bytes_in_words, seconds_in_words

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lightning_hangcheck.doctor.check import Subject

READ_LIMIT_S = 4.0
MOST_WAYS = 3
CPU_SHARE = 0.9
"""Of free main memory; transformers uses the same share (get_max_memory)."""
EXAMPLE = "for example --gpus 2 --gpu-memory 80, or --gpus 0 for none"


@check(
    "memory",
    "a model that is offloaded takes seconds for a token, and looks like a hang",
    name="model's memory",
    limit_s=12.0,
)
def model_memory(subject: Subject, machine: Machine | None = None) -> Finding | None:
    """Config.json of --backbone, what --extra keeps beside it, and the memory of this machine."""
    name = subject.backbone
    if name is None:
        return None
    for_a_job = f"hangcheck plan {name} --gpus 1 --gpu-memory 80"

    def read() -> Mapping[str, object] | None:
        path = find_config(str(find_model(name, subject.environment)))
        return None if path is None or path.suffix != ".json" else read_config(path)

    try:
        config = apart(READ_LIMIT_S, read)
        if config is None:
            return None  # `model_fits` reports it
        fields = read_fields(config)
        if machine is None:
            try:
                machine = find_machine()
            except BadUsage:
                machine = find_machine(gpus=0)
    except (BadUsage, OSError, NoAnswerFromStorage) as error:
        return warning(f"{name} cannot be planned: {error}", for_a_job)
    use, _ = settle_use(config, fields, extras=subject.extras)
    plan = make_plan(Model(name, fields, count_weights(fields)), machine, use)
    size = f"{bytes_in_words(plan.weights)} in {plan.use.dtype}"
    extra = sum(plan.extras.values())
    more = f", {bytes_in_words(extra)} beside it" if extra else ""
    facts = f"{plan.model}: {size}{more}, context {plan.use.context}: {plan.reason}"
    if not machine.gpus:  # often not the machine of the run
        sentence = f"no GPU was found here; {facts}"
        what_job = "say what the job will have:"
        return ok(sentence) if plan.fits else warning(sentence, for_a_job, advice=what_job)
    if plan.speed in ("fast", "good"):
        answer = seconds_in_words(float(f"{plan.seconds_per_token * ANSWER:.2g}"))
        return ok("; ".join((facts, f"about {answer} for {ANSWER} tokens", *plan.unused)))
    helps = [f"{way.change} ({way.speed})" for way in plan.ways_out if way.fits][:MOST_WAYS]
    found = failed if plan.speed == "too slow" else warning
    return found(f"{facts}; {plan.speed}", f"hangcheck plan {plan.model}", advice="\n".join(helps))


def find_machine(
    gpus: int | None = None, gpu_gb: float | None = None, cpu_gb: float | None = None
) -> Machine:
    """Return the machine to plan for: as given, else as found here.

    Args:
        gpus: Number of GPUs; None for those of this machine.
        gpu_gb: GB per GPU; None for what they have here.
        cpu_gb: GB of main memory for weights; None for 90 % of what is free here.

    Raises:
        BadUsage: Something was not given and cannot be found here.
    """
    memory: tuple[int, ...] = ()
    if gpus and gpu_gb is not None:
        memory = (int(gpu_gb * GB),) * gpus
    elif gpus != 0:
        found = gpu_memory()
        if isinstance(found, Gap) or not found:
            why = f" ({found.reason})" if isinstance(found, Gap) else ""
            raise BadUsage(f"no GPU was found here{why}", f"say what the job will have, {EXAMPLE}")
        if (gpus or 0) > len(found):
            sentence = f"--gpus {gpus} without --gpu-memory, and this machine has only {len(found)}"
            raise BadUsage(sentence, f"say both, {EXAMPLE}")
        memory = found[:gpus] if gpu_gb is None else (int(gpu_gb * GB),) * len(found)
    if cpu_gb is not None:
        source = "found here" if gpus is None else "given"
        return Machine(gpus=memory, cpu=int(cpu_gb * GB), source=source)
    use = memory_use(os.getpid())
    if use is None:
        sentence = "the main memory of this machine cannot be read"
        raise BadUsage(sentence, "say it, for example --cpu-memory 64")
    free = use.limit_bytes - use.used_bytes
    return Machine(gpus=memory, cpu=int(free * CPU_SHARE), source="found here")
