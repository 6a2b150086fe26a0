"""What a plan says of known sizes, and that each way out was really planned."""

from __future__ import annotations

import pytest
from planning.planned import PUBLISHED_PARAMETERS, machine, model, use

from lightning_hangcheck.planning.plan import GB
from lightning_hangcheck.planning.planner import make_plan


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
        ((18,), 64, "good"),
        ((24, 24), 64, "good"),
        ((16,), 64, "acceptable"),
        ((8,), 64, "slow"),
        ((), 64, "acceptable"),
        ((6,), 2, "slow"),
        ((0.2,), 64, "too slow"),
    ],
)
def test_the_class_follows_what_must_be_carried(
    gpus: tuple[float, ...], cpu_gb: float, speed: str
) -> None:
    plan = make_plan(model(), machine(*gpus, cpu_gb=cpu_gb), use())
    assert plan.speed == speed, plan.reason
    assert plan.reason


def test_max_memory_is_nine_tenths_where_that_leaves_room_for_the_rest() -> None:
    plan = make_plan(model(), machine(80, 80, cpu_gb=200), use())
    assert plan.max_memory == {"0": "72GB", "1": "72GB", "cpu": "200GB"}


def test_max_memory_is_less_where_the_rest_needs_more() -> None:
    """10 GB of operators stand on the first GPU, so weights get 24 - 10 - cache and the like."""
    plan = make_plan(model(), machine(24, 24), use(operators_gb=10))
    first, second = plan.shares
    assert float(plan.max_memory["0"].removesuffix("GB")) < 14
    assert plan.max_memory["1"] == "21.6GB"
    assert (first.extras, second.extras) == (10 * GB, 0)
    assert min(first.headroom, second.headroom) >= 0


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


def test_ways_out_are_plans_of_their_own() -> None:
    """Each claim is planned again from its own words and must come out the same."""
    here = machine(12)
    plan = make_plan(model(), here, use(context=8192))
    ways = {way.change: way for way in plan.ways_out}
    assert [way.fits for way in plan.ways_out] == sorted(w.fits for w in ways.values())[::-1]
    again = {
        "8-bit: --dtype int8": make_plan(model(), here, use("int8", 8192)),
        "4-bit: --dtype int4": make_plan(model(), here, use("int4", 8192)),
        "2 GPUs of 12 GB": make_plan(model(), machine(12, 12), use(context=8192)),
    }
    for change, other in again.items():
        assert (ways[change].fits, ways[change].speed) == (other.fits, other.speed)
    assert ways["4-bit: --dtype int4"].fits
    assert not ways["8-bit: --dtype int8"].fits


def test_the_smallest_gpu_is_the_smallest() -> None:
    plan = make_plan(model(), machine(8), use())
    change = next(way.change for way in plan.ways_out if way.change.startswith("one GPU of"))
    size = int(change.split()[3])
    assert make_plan(model(), machine(size), use()).fits
    assert not make_plan(model(), machine(size - 1), use()).fits


def test_a_smaller_context_is_offered_only_as_planned() -> None:
    """Weights fit, 128k tokens of cache do not: the answer is a number of tokens that fit."""
    plan = make_plan(model(), machine(24), use(context=131072))
    way = next(way for way in plan.ways_out if "--context" in way.change)
    assert way.fits
    context = int(way.change.split()[-1])
    assert make_plan(model(), machine(24), use(context=context)).fits
    assert not make_plan(model(), machine(24), use(context=2 * context)).fits


def test_eight_bits_do_not_help_experts_in_one_tensor() -> None:
    """bitsandbytes replaces linear layers, and transformers 5 keeps a layer's experts together."""
    experts = {"num_local_experts": 8, "num_experts_per_tok": 2, "model_type": "mixtral"}
    plan = make_plan(model(**experts), machine(80), use("int8"))
    assert plan.weights > 0.9 * make_plan(model(**experts), machine(80), use()).weights
    assert any("experts" in note for note in plan.notes)


def test_an_unknown_family_is_planned_and_said_to_be_a_guess() -> None:
    plan = make_plan(model(model_type="llm_of_tomorrow"), machine(80), use())
    assert plan.sureness == "guessed"
    assert any("'llm_of_tomorrow' is not known here" in note for note in plan.notes)
