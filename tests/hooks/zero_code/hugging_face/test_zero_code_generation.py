"""A script that loads and generates plainly: the same tokens, and it is said what happens."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest
from hooks.launching import Ended, run_job
from hooks.zero_code.injecting import PACKAGE, as_script, run_script
from long_tests import WHEN_ASKED_FOR
from processes import PROGRAMS

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.real
OFFLINE = {"HF_HUB_OFFLINE": "1"}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, str]:
    """What it prints when it is watched, and when it is not; what is said of it."""
    printed = []
    for watched in (True, False):
        folder: Path = tmp_path_factory.mktemp("generating")
        script = folder / "unaware_generating.py"
        shutil.copy(PROGRAMS / script.name, script)
        environment, python_path = as_script(folder) if watched else ({}, PACKAGE)
        code, output, errors = run_script(script, {**environment, **OFFLINE}, python_path)
        assert code == 0, errors
        printed += [output.splitlines()[-1], errors]
    return printed[0], printed[2], printed[1]


def test_tokens_texts_and_errors_are_those_of_the_script_alone(both: tuple[str, str, str]) -> None:
    watched, plain, said = both
    assert watched == plain
    assert "is no longer watched" not in said
    assert "is left out; all else goes on" not in said


def test_traps_in_the_arguments_are_named_before_the_load(both: tuple[str, str, str]) -> None:
    lines = both[2].splitlines()
    begin = next(
        place for place, line in enumerate(lines) if "About to call model from_pre" in line
    )
    before = os.linesep.join(lines[:begin])
    assert "AutoModelForCausalLM.from_pretrained will read the local folder model" in before
    assert "WARNING: with a device map and offload_folder" in before
    assert both[2].count("WARNING: with a device map") == 1


def test_what_was_loaded_and_where_it_begins_is_said(both: tuple[str, str, str]) -> None:
    assert "model: GPT2LMHeadModel, its first parameter on cpu" in both[2]


def test_a_generation_config_is_announced(both: tuple[str, str, str]) -> None:
    assert "GenerationConfig.from_pretrained will read the local folder model" in both[2]
    assert "model config from_pretrained (GenerationConfig) returned" in both[2]


def test_the_first_generations_are_told_and_the_others_are_not(both: tuple[str, str, str]) -> None:
    said = both[2]
    assert said.count("About to call generate (GPT2LMHeadModel)...") == 3
    assert "generate: 2 prompts, 6 tokens; max_new_tokens=5; first parameter on cpu" in said
    assert "generate: 2 prompts of 6 tokens gave 10 new ones in " in said
    assert said.count("generate: 2 prompts of 6 tokens gave ") == 3


def test_a_pipeline_is_told_with_its_characters(both: tuple[str, str, str]) -> None:
    said = both[2]
    assert "pipeline text-generation (GPT2LMHeadModel): 1 prompt, 5 characters" in said
    assert "About to call pipeline text-generation (GPT2LMHeadModel)..." in said
    assert "pipeline text-generation (GPT2LMHeadModel): 1 prompt gave 1 answer, " in said


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    ended = run_job(tmp_path_factory.mktemp("tokens"), "hooks_generating.py")
    assert ended.code == 0, ended.errors
    return ended


@WHEN_ASKED_FOR
def test_each_token_is_a_sign_of_life_and_none_is_a_beat(job: Ended) -> None:
    """A beat would speak for the pace of the script's own loop."""
    seen = job.of("main")[0]
    assert seen["phases"] == ["generate"]
    assert seen["sections"] == ["generate (GPT2LMHeadModel)"]
    assert len(seen["moves"]) == 7
    assert all(seen["moves"])
    assert seen["beats"] == 0


@WHEN_ASKED_FOR
def test_in_another_thread_it_has_a_section_and_leaves_the_main_threads_phase_alone(
    job: Ended,
) -> None:
    seen = job.of("thread")[0]
    assert seen["sections"] == ["generate (GPT2LMHeadModel)"]
    assert seen["phases"] == ["startup"]
