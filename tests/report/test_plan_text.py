"""The plan as people read it."""

from __future__ import annotations

import ast

from planning.planned import machine, model, use

from lightning_hangcheck.planning.plan import read_phase
from lightning_hangcheck.planning.planner import make_plan
from lightning_hangcheck.report.plan_text import render


def pasted(text: str) -> dict[str, ast.expr]:
    """What stands under ``paste``, read as the arguments of a call."""
    lines = text.partition("paste")[2].partition("\n\n")[0]
    call = ast.parse(f"f({lines})", mode="eval").body
    assert isinstance(call, ast.Call)
    return {one.arg or "": one.value for one in call.keywords}


def test_what_is_to_be_pasted_is_python() -> None:
    text = render(make_plan(model(), machine(24, 24), use()))
    arguments = pasted(text)
    assert isinstance(arguments["max_memory"], ast.Dict)
    assert ast.literal_eval(arguments["max_memory"]) == {0: "21.6GB", 1: "21.6GB", "cpu": "64GB"}
    assert ast.literal_eval(arguments["device_map"]) == "auto"
    assert ast.literal_eval(arguments["dtype"]) == "bfloat16"


def test_nothing_is_to_be_pasted_that_the_loader_warns_of() -> None:
    text = render(make_plan(model(), machine(6, cpu_gb=4), use()))
    assert "paste    nothing: it would need offload_folder" in text
    assert "offload_folder=" not in text
    assert "plan one of the ways out" in text


def test_eight_bits_are_asked_for_as_transformers_wants_them() -> None:
    arguments = pasted(render(make_plan(model(), machine(80), use("int8"))))
    assert "quantization_config" in arguments
    assert "dtype" not in arguments


def test_it_begins_with_the_class_and_the_reason() -> None:
    first, second = render(make_plan(model(), machine(80), use())).splitlines()[:2]
    assert first == "FAST  llama-8b (8.03 billion weights, 16.1 GB in bfloat16) on 1 GPU of 80.0 GB"
    assert second.strip().startswith("all on one GPU")


def test_it_names_the_time_of_an_answer_and_what_the_class_means() -> None:
    lines = render(make_plan(model(), machine(80), use())).splitlines()
    assert "      time     about 0.033 s a token, 17 s for 512 tokens" in lines
    assert (
        "      class    fast: one GPU holds all, with 5% left for the allocator's fragments"
        in lines
    )


def test_phases_stand_in_rows_of_their_own() -> None:
    phases = (read_phase("rollout:context=8192,batch=2"), read_phase("train:optimizer=30"))
    text = render(make_plan(model(), machine(80), use(), phases=phases))
    rollout, train = text.partition("phases   ")[2].splitlines()[:2]
    assert rollout.split()[:5] == ["rollout", "context", "8192,", "batch", "2"]
    assert "extra 30.0 GB" in train


def test_nothing_of_a_foreign_name_reaches_the_terminal_raw() -> None:
    text = render(make_plan(model(model_type="evil\x1b[2J"), machine(80), use()))
    assert "\x1b" not in text
