"""A script that loads and generates plainly: the same tokens, and it is said what happens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hooks.launching import PACKAGE, as_script, run_program
from long_tests import WHEN_ASKED_FOR

if TYPE_CHECKING:
    from pathlib import Path


def printed(folder: Path, environment: dict[str, str], python_path: str) -> tuple[str, str]:
    """The last line of its output, and all of its errors."""
    folder.mkdir(exist_ok=True)
    ours = {**environment, "HF_HUB_OFFLINE": "1"}
    code, output, errors = run_program("unaware_generating.py", folder, ours, python_path)
    assert code == 0, errors
    return output.splitlines()[-1], errors


@pytest.mark.real
@WHEN_ASKED_FOR
def test_tokens_are_those_of_the_script_alone_and_it_is_said_what_happens(tmp_path: Path) -> None:
    watched, said = printed(tmp_path / "watched", *as_script(tmp_path))
    assert watched == printed(tmp_path / "plain", {}, PACKAGE)[0]
    assert "is no longer watched" not in said

    before = said.partition("About to call model from_pre")[0]
    assert "AutoModelForCausalLM.from_pretrained will read the local folder model" in before
    assert before.count("WARNING: with a device map and offload_folder") == 1
    assert "model: GPT2LMHeadModel, its first parameter on cpu" in said
    assert "GenerationConfig.from_pretrained will read the local folder model" in said
    assert said.count("About to call generate (GPT2LMHeadModel)...") == 3, "the first are told"
    assert "generate: 2 prompts of 6 tokens gave 10 new ones in " in said
