"""Plans: what a configuration says, and where everything goes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace
from planning.planned import LLAMA_8B, PUBLISHED_PARAMETERS, machine, model, use

from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.planning.config import find_config, read_config, read_fields
from lightning_hangcheck.planning.plan import (
    GB,
    Extra,
    PlannedPhase,
    Use,
    gradient_accumulation,
    read_phase,
)
from lightning_hangcheck.planning.planner import make_plan

if TYPE_CHECKING:
    from pathlib import Path


def test_a_model_of_several_parts_is_planned_by_its_text_part() -> None:
    fields = read_fields({"model_type": "llava", "text_config": LLAMA_8B})
    assert (fields.model_type, fields.layers) == ("llama", 32)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hidden_size": None}, "no hidden_size (its model_type is 'llama')"),
        ({"num_hidden_layers": 0}, "no num_hidden_layers"),
        ({"vocab_size": "many"}, "vocab_size='many'"),
        ({"num_key_value_heads": True}, "num_key_value_heads=True"),
    ],
)
def test_a_size_that_cannot_be_is_one_sentence(changes: dict[str, object], said: str) -> None:
    with pytest.raises(BadUsage, match=r"config\.json has") as raised:
        read_fields({**LLAMA_8B, **changes})
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"{", "is not JSON"), (b"[1]", "holds no JSON object"), (b"", "is not JSON")],
)
def test_a_broken_file_is_one_sentence(content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(BadUsage, match=said) as raised:
        read_config(tmp_path / "config.json")
    assert "\n" not in str(raised.value)


def test_a_folder_or_its_config_is_found_and_a_folder_without_one_refused(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    with pytest.raises(BadUsage, match=r"has no config\.json"):
        find_config(str(tmp_path))
    config.write_text("{}")
    assert find_config(str(tmp_path)) == find_config(str(config)) == config
    assert find_config(str(tmp_path / "absent")) is None


# Plans: steps by phase, batches, and configurations they are made of.


def test_a_published_model_has_its_published_number_of_weights() -> None:
    plan = make_plan(model(), machine(80), use())
    assert plan.parameters == PUBLISHED_PARAMETERS
    assert plan.weights == 2 * PUBLISHED_PARAMETERS
    # 2 (keys and values) x 32 layers x 8 heads x 128 wide x 4096 tokens x 2 bytes
    assert plan.cache == 2 * 32 * 8 * 128 * 4096 * 2


@pytest.mark.parametrize(
    ("gpus", "cpu_gb", "speed"),
    [
        ((80,), 64, "fast"),
        ((24, 24), 64, "good"),
        ((16,), 64, "acceptable"),
        ((8,), 64, "slow"),
        ((), 64, "acceptable"),
        ((0.2,), 64, "too slow"),
    ],
)
def test_the_class_follows_what_must_be_carried(
    gpus: tuple[float, ...], cpu_gb: float, speed: str
) -> None:
    plan = make_plan(model(), machine(*gpus, cpu_gb=cpu_gb), use())
    assert plan.speed == speed, plan.reason
    assert plan.reason


@pytest.mark.parametrize("gpus", [(80,), (24, 24), (12,), (6, 6), (), (40, 8)])
@pytest.mark.parametrize("context", [512, 65536])
def test_everything_is_somewhere_and_nothing_is_counted_twice(
    gpus: tuple[float, ...], context: int
) -> None:
    plan = make_plan(model(), machine(*gpus), use(context=context))
    assert sum(share.weights for share in plan.shares) == plan.weights
    assert sum(share.layers for share in plan.shares) == plan.layers
    assert 0 <= plan.cache - sum(share.cache for share in plan.shares) < len(plan.shares)
    gpu_weights = sum(share.weights for share in plan.shares if share.device.isdigit())
    assert plan.offloaded == (plan.weights - gpu_weights if gpus else 0)
    if not plan.offloaded:
        return
    assert all(share.weights <= share.limit for share in plan.shares if share.limit)


TWO_BESIDE = PlannedPhase("x", extras=(Extra("a", 6 * GB), Extra("b", 6 * GB)))


@pytest.mark.parametrize(
    ("gpu_gb", "asked", "fitting"),
    [
        (12, use(context=8192), {"4-bit", "2 GPUs", "one GPU"}),
        (24, use(context=131072), {"6 GPUs", "one GPU", "smaller context"}),
        (24, use(operators_gb=10), {"8-bit", "4-bit", "keep operators", "2 GPUs", "one GPU"}),
        (20, TWO_BESIDE.use_in(use()), {"keep a and b", "2 GPUs", "one GPU"}),
    ],
)
def test_ways_out_are_plans_of_their_own(gpu_gb: int, asked: Use, fitting: set[str]) -> None:
    """Each claim is planned again from its own words and must come out the same."""
    plan = make_plan(model(), machine(gpu_gb), asked)
    assert [way.fits for way in plan.ways_out] == sorted(w.fits for w in plan.ways_out)[::-1]
    for way in plan.ways_out:
        words = way.change.replace("one GPU", "1 GPUs")
        gpus = re.match(r"(\d+) GPUs of (\d+) GB", words)
        on = machine(*[float(gpus[2])] * int(gpus[1])) if gpus else machine(gpu_gb)
        given = dict(re.findall(r"--(dtype|context) (\w+)", words))
        moved = re.findall(r"--extra (\w+)=", words)
        again = replace(
            asked,
            dtype=given.get("dtype", asked.dtype),
            context=int(given.get("context", asked.context)),
            extras=tuple(replace(one, on_cpu=one.name in moved) for one in asked.extras),
        )
        made = make_plan(model(), on, again)
        assert (way.fits, way.speed) == (made.fits, made.speed), way.change
        if way.change.startswith("one GPU"):  # the smallest that does
            assert not make_plan(model(), machine(float(gpus[2]) - 1), asked).fits  # type: ignore[index]
        if "context" in given:  # the largest half that does
            twice = replace(asked, context=2 * int(given["context"]))
            assert not make_plan(model(), on, twice).fits
    fits = {way.change for way in plan.ways_out if way.fits}
    assert {name for name in fitting if any(one.startswith(name) for one in fits)} == fitting
    assert len(fits) == len(fitting), fits


LONG = read_phase("rollout:context=32768,batch=4")
BESIDE = read_phase("train:optimizer=40")


@pytest.mark.parametrize(
    "text", ["", "r", "r:", ":context=1", "r:context=0", "r:batch=many", "r:batch=-1", "r:ops"]
)
def test_a_slip_in_a_phase_is_refused(text: str) -> None:
    with pytest.raises(BadUsage):
        read_phase(text)


@pytest.mark.parametrize("phases", [(LONG, BESIDE), (BESIDE, LONG)])
def test_the_phase_that_needs_the_most_is_planned_for(phases: tuple[PlannedPhase, ...]) -> None:
    plan = make_plan(model(), machine(80), use(), phases=phases)
    left = {phase.name: phase.least_left for phase in plan.phases}
    assert left["rollout"] > left["train"]
    assert plan.extras == {"optimizer": 40 * GB}
    assert min(share.headroom for share in plan.shares) == left["train"]
    assert any("placed for train" in note for note in plan.notes)


NO_COUNT = "is not a whole number above 0"


@pytest.mark.parametrize(
    ("numbers", "said", "unsaid"),
    [
        ((500, 6, 4), "buffer 500 is not a multiple of world_size 6 x micro_batch 4 = 24", ""),
        ((500, 6, 4), "buffer=504 (21 steps) or buffer=480 (20 steps)", ""),
        ((500, 2, 4), "or micro_batch=5 (50 steps) or micro_batch=2 (125 steps)", ""),
        ((10**15 + 2, 2, 4), "micro_batch=", "micro_batch=4 "),  # in no time
        ((501, 2, 4), "buffer=504", "micro_batch="),  # none fits
        ((5, 8, 4), "write buffer=32 (1 step)", "buffer=0"),
        *((wrong, NO_COUNT, "") for wrong in ((0, 2, 4), (8, 0, 4), (8, 2, -1), (8, 2, True))),
        ((8.0, 2, 4), NO_COUNT, ""),
    ],
)
def test_a_buffer_that_does_not_fit_is_refused_with_what_would(
    numbers: tuple[int, int, int], said: str, unsaid: str
) -> None:
    with pytest.raises(BadUsage) as caught:
        gradient_accumulation(*numbers)
    assert said in str(caught.value)
    assert not unsaid or unsaid not in str(caught.value)
