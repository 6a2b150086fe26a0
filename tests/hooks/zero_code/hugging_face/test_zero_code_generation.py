"""A script that loads and generates plainly: the same tokens, and it is said what happens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hooks.launching import PACKAGE, as_script, run_program
from long_tests import WHEN_ASKED_FOR

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.real
OFFLINE = {"HF_HUB_OFFLINE": "1"}


def printed(folder: Path, environment: dict[str, str], python_path: str) -> tuple[str, str]:
    """The last line of its output, and all of its errors."""
    ours = {**environment, **OFFLINE}
    code, output, errors = run_program("unaware_generating.py", folder, ours, python_path)
    assert code == 0, errors
    return output.splitlines()[-1], errors


@WHEN_ASKED_FOR
def test_tokens_and_texts_are_those_of_the_script_alone_and_it_is_said_what_happens(
    tmp_path: Path,
) -> None:
    for name in ("watched", "plain"):
        (tmp_path / name).mkdir()
    watched, said = printed(tmp_path / "watched", *as_script(tmp_path / "watched"))
    assert watched == printed(tmp_path / "plain", {}, PACKAGE)[0]
    assert "is no longer watched" not in said
    assert "is left out; all else goes on" not in said

    before = said.partition("About to call model from_pre")[0]
    assert "AutoModelForCausalLM.from_pretrained will read the local folder model" in before
    assert "WARNING: with a device map and offload_folder" in before
    assert said.count("WARNING: with a device map") == 1
    assert "model: GPT2LMHeadModel, its first parameter on cpu" in said
    assert "GenerationConfig.from_pretrained will read the local folder model" in said
    assert "model config from_pretrained (GenerationConfig) returned" in said

    assert said.count("About to call generate (GPT2LMHeadModel)...") == 3, "the first are told"
    assert "generate: 2 prompts, 6 tokens; max_new_tokens=5; first parameter on cpu" in said
    assert "generate: 2 prompts of 6 tokens gave 10 new ones in " in said
    assert said.count("generate: 2 prompts of 6 tokens gave ") == 3
    assert "About to call pipeline text-generation (GPT2LMHeadModel)..." in said
