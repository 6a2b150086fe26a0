"""Checks whether the model fits into this machine's memory, with everything kept next to it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from lightning_hangcheck.doctor.check import Finding, check, failed, ok, warning
from lightning_hangcheck.doctor.data_checks import find_model
from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.files import NoAnswerFromStorage, apart
from lightning_hangcheck.isolation.command import interpreter
from lightning_hangcheck.look.gpu import gpu_memory
from lightning_hangcheck.look.kernel import memory_use
from lightning_hangcheck.look.programs import ChildLate, answer_of
from lightning_hangcheck.model.codec import json_decoder
from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.planning.config import find_config
from lightning_hangcheck.planning.plan import GB, Machine, Plan
from lightning_hangcheck.planning.planner import ANSWER
from lightning_hangcheck.text.shown import bytes_in_words, seconds_in_words

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lightning_hangcheck.doctor.check import Subject
    from lightning_hangcheck.planning.plan import Extra

READ_LIMIT_S = 4.0
PLAN_LIMIT_S = 60.0  # torch and transformers are imported in 4 s, from a busy network disk in 40 s
MOST_WAYS = 3
CPU_SHARE = 0.9
"""Of free main memory; transformers uses the same share (get_max_memory)."""
EXAMPLE = "for example --gpus 2 --gpu-memory 80, or --gpus 0 for none"


@check(
    "memory",
    "a model that is offloaded takes seconds for a token, and looks like a hang",
    name="model's memory",
    limit_s=READ_LIMIT_S + PLAN_LIMIT_S,
)
def model_memory(subject: Subject, machine: Machine | None = None) -> Finding | None:
    """Config.json of --backbone, what --extra keeps beside it, and the memory of this machine."""
    name = subject.backbone
    if name is None:
        return None
    for_a_job = f"hangcheck plan {name} --gpus 1 --gpu-memory 80"

    try:
        folder = str(find_model(name, subject.environment))
        config = apart(READ_LIMIT_S, lambda: find_config(folder))
        if config is None or config.suffix != ".json":
            return None  # `model_fits` reports it
        if machine is None:
            try:
                machine = find_machine()
            except BadUsage:
                machine = find_machine(gpus=0)
        plan = _planned(str(config), machine, subject.extras)
    except (BadUsage, OSError, NoAnswerFromStorage, ChildLate) as error:
        return warning(f"{name} cannot be planned: {error}", for_a_job)
    size = f"{bytes_in_words(plan.weights)} in {plan.use.dtype}"
    extra = sum(plan.extras.values())
    more = f", {bytes_in_words(extra)} beside it" if extra else ""
    facts = f"{name}: {size}{more}, context {plan.use.context}: {plan.reason}"
    if not machine.gpus:  # often not the machine of the run
        sentence = f"no GPU was found here; {facts}"
        what_job = "say what the job will have:"
        return ok(sentence) if plan.fits else warning(sentence, for_a_job, advice=what_job)
    if plan.speed in ("fast", "good"):
        answer = seconds_in_words(float(f"{plan.seconds_per_token * ANSWER:.2g}"))
        return ok("; ".join((facts, f"about {answer} for {ANSWER} tokens", *plan.unused)))
    helps = [f"{way.change} ({way.speed})" for way in plan.ways_out if way.fits][:MOST_WAYS]
    found = failed if plan.speed == "too slow" else warning
    return found(f"{facts}; {plan.speed}", f"hangcheck plan {name}", advice="\n".join(helps))


def _planned(config: str, machine: Machine, extras: Iterable[Extra]) -> Plan:
    """Plan in a process of its own, as torch and transformers are imported for it."""
    options = ["--gpus", str(len(machine.gpus)), "--cpu-memory", f"{machine.cpu / GB:.9f}"]
    if machine.gpus:
        options += ["--gpu-memory", f"{min(machine.gpus) / GB:.9f}"]
    for extra in extras:
        place = "@cpu" if extra.on_cpu else ""
        options += ["--extra", f"{extra.name}={extra.size / GB:.9f}{place}"]
    command = [interpreter(), "-m", "lightning_hangcheck", "plan", config, "--json", *options]
    ended = answer_of(command, PLAN_LIMIT_S, os.environ)
    if ended.returncode:
        said = ended.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        why = said.removeprefix("hangcheck: ") or f"its child ended with code {ended.returncode}"
        raise OSError(why)
    return json_decoder(Plan).decode(ended.stdout)


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
