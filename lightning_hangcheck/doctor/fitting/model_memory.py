"""The memory plan of the backbone on this machine, by formulas from its config.json alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.doctor.check import Check
from lightning_hangcheck.doctor.machine import find_machine
from lightning_hangcheck.doctor.needed.model_files import find_model
from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.files.apart import NoAnswerFromStorage, apart
from lightning_hangcheck.planning.config import count_weights, find_config, read_config, read_fields
from lightning_hangcheck.planning.placing import ANSWER
from lightning_hangcheck.planning.plan import settle_use
from lightning_hangcheck.planning.planner import Model, make_plan
from lightning_hangcheck.text.amounts import bytes_in_words, seconds_in_words

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lightning_hangcheck.doctor.subject import Subject
    from lightning_hangcheck.planning.plan import Machine, Plan

NAME = "model's memory"
READ_LIMIT_S = 4.0
TIME_LIMIT_S = 12.0
"""Above the driver's 5 s and the storage's 4 s."""
MOST_WAYS = 3


def model_memory(subject: Subject, machine: Machine | None = None) -> tuple[Check, ...]:
    """Plan the backbone for generation, with what stands beside it.

    Args:
        subject: The run.
        machine: Where it will run; this machine where None.
    """
    name = subject.backbone
    if name is None:
        return ()
    try:
        config = apart(READ_LIMIT_S, lambda: _config(name, subject.environment))
        if config is None:
            return ()  # `model_fits` says so
        fields = read_fields(config)
        here = machine or _this_machine()
    except (BadUsage, OSError, NoAnswerFromStorage) as error:
        sentence = f"{name} cannot be planned: {error}"
        return (
            Check(NAME, "warning", sentence, f"hangcheck plan {name} --gpus 1 --gpu-memory 80"),
        )
    use, _ = settle_use(config, fields, extras=subject.extras)
    plan = make_plan(Model(name, fields, count_weights(fields)), here, use)
    return (_without_gpu(plan) if not here.gpus else _on_gpus(plan),)


def _config(name: str, environment: Mapping[str, str]) -> Mapping[str, object] | None:
    path = find_config(str(find_model(name, environment)))
    return None if path is None or path.suffix != ".json" else read_config(path)


def _this_machine() -> Machine:
    try:
        return find_machine()
    except BadUsage:
        return find_machine(gpus=0)


def _on_gpus(plan: Plan) -> Check:
    if plan.speed in ("fast", "good"):
        return Check(NAME, "ok", "; ".join((_told(plan), _time(plan), *plan.unused)))
    sentence = f"{_told(plan)}; {plan.speed}"
    helps = [f"{way.change} ({way.speed})" for way in plan.ways_out if way.fits]
    remedy = "\n".join((*helps[:MOST_WAYS], f"hangcheck plan {plan.model} says more"))
    if plan.speed == "too slow":
        return Check(NAME, "failed", sentence, remedy)
    return Check(NAME, "warning", sentence, remedy)


def _without_gpu(plan: Plan) -> Check:
    """A machine without a GPU is often not the one that the run will have."""
    if plan.fits:
        return Check(NAME, "ok", f"no GPU was found here; {_told(plan)}")
    again = f"say what the job will have: hangcheck plan {plan.model} --gpus 1 --gpu-memory 80"
    return Check(NAME, "warning", f"no GPU was found here; {_told(plan)}", again)


def _told(plan: Plan) -> str:
    size = f"{bytes_in_words(plan.weights)} in {plan.use.dtype}"
    beside = sum(plan.extras.values())
    more = f", {bytes_in_words(beside)} beside it" if beside else ""
    return f"{plan.model}: {size}{more}, context {plan.use.context}: {plan.reason}"


def _time(plan: Plan) -> str:
    answer = seconds_in_words(float(f"{plan.seconds_per_token * ANSWER:.2g}"))
    return f"about {answer} for {ANSWER} tokens"
