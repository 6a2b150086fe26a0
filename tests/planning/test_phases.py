"""What stands beside a model, and phases that need different things of it, read and planned."""

from __future__ import annotations

import pytest
from planning.planned import machine, model, use

from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.planning.plan import GB, Extra, PlannedPhase, read_extra, read_phase
from lightning_hangcheck.planning.planner import make_plan

LONG = read_phase("rollout:context=32768,batch=4")
BESIDE = read_phase("train:optimizer=40")


def test_a_size_may_name_its_place() -> None:
    assert read_extra("a=2.5@cpu") == Extra("a", 2_500_000_000, on_cpu=True)
    assert read_extra("a=1M*complex64@cpu") == Extra("a", 8_000_000, on_cpu=True)
    assert read_extra("a=2.5") == Extra("a", 2_500_000_000)


def test_a_phase_says_only_what_is_different() -> None:
    assert read_phase("r: context=100, ops=1@cpu") == PlannedPhase(
        name="r", context=100, extras=(Extra("ops", GB, on_cpu=True),)
    )
    rest = use(context=10, batch=3, operators_gb=2)
    own = read_phase("r:operators=5,more=1").use_in(rest)
    assert (own.context, own.batch) == (10, 3)
    assert own.extras == (Extra("operators", 5 * GB), Extra("more", GB))


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


def test_a_phase_that_does_not_fit_comes_before_one_that_does() -> None:
    plan = make_plan(model(), machine(24), use(), phases=(LONG, BESIDE))
    assert {phase.name: phase.speed for phase in plan.phases}["train"] == "too slow"
    assert plan.speed == "too slow"


def test_what_is_kept_on_the_cpu_is_counted_there() -> None:
    on_gpu = make_plan(model(), machine(24), use(operators_gb=10))
    beside = (Extra("operators", 10 * GB, on_cpu=True),)
    plan = make_plan(model(), machine(24), read_phase("x:operators=10@cpu").use_in(use()))
    gpu, cpu = plan.shares
    assert plan.use.extras == beside
    assert (on_gpu.fits, plan.fits) == (False, True)
    assert (gpu.extras, cpu.device, cpu.extras) == (0, "cpu", 10 * GB)
    assert plan.max_memory["cpu"] == "54GB"


def test_without_a_gpu_everything_beside_is_counted_once() -> None:
    extras = (Extra("a", GB), Extra("b", 2 * GB, on_cpu=True))
    (cpu,) = make_plan(
        model(), machine(), PlannedPhase(name="x", extras=extras).use_in(use())
    ).shares
    assert cpu.extras == 3 * GB


def test_keeping_it_on_the_cpu_is_a_way_out_that_was_planned() -> None:
    plan = make_plan(model(), machine(24), use(operators_gb=10))
    way = next(way for way in plan.ways_out if way.change.startswith("keep operators on the CPU"))
    assert "--extra operators=10@cpu" in way.change
    assert (way.fits, way.speed) == (True, "fast")


def test_keeping_all_of_several_things_on_the_cpu_is_planned_too() -> None:
    beside = PlannedPhase(name="x", extras=(Extra("a", 6 * GB), Extra("b", 6 * GB))).use_in(use())
    ways = {way.change: way for way in make_plan(model(), machine(20), beside).ways_out}
    assert not ways["keep a on the CPU: --extra a=6@cpu"].fits
    assert ways["keep a and b on the CPU: --extra a=6@cpu --extra b=6@cpu"].fits


@pytest.mark.parametrize(("gpu_gb", "said"), [(80, True), (24, False)])
def test_memory_that_is_paid_for_and_stays_empty_is_said(gpu_gb: int, said: bool) -> None:
    plan = make_plan(model(), machine(gpu_gb), use())
    assert bool(plan.unused) == said
    if said:
        assert "of 80 GB of GPU memory are used" in plan.unused[0]
        least = int(plan.unused[0].partition("one GPU of ")[2].split()[0])
        assert make_plan(model(), machine(least), use()).fits
        assert not make_plan(model(), machine(least - 1), use()).fits


def test_the_time_of_a_token_is_told_wherever_the_weights_are() -> None:
    times = [make_plan(model(), machine(size), use()).seconds_per_token for size in (80, 12, 6)]
    assert times == sorted(times)
    # 16 GB at 1e12 bytes a second, 0.5 GB of cache, and 32 layers of half a millisecond
    assert times[0] == pytest.approx(0.0166 + 0.016, rel=0.01)
    assert times[1] > make_plan(model(), machine(12), use()).seconds_per_pass
