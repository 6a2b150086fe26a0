"""`hangcheck plan`: what is typed wrong is one sentence, what is right is text or JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from planning.planned import LLAMA_8B, PUBLISHED_PARAMETERS

from lightning_hangcheck.cli.main import invoke

if TYPE_CHECKING:
    from pathlib import Path

# what the guests warn of while they are imported is theirs
pytestmark = pytest.mark.filterwarnings("ignore")
MACHINE = ("--gpus", "1", "--gpu-memory", "80", "--cpu-memory", "64")


@pytest.fixture
def llama(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA_8B, "dtype": "bfloat16"}))
    return str(tmp_path)


def test_a_plan_as_json_holds_everything(llama: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["plan", llama, *MACHINE, "--extra", "operators=6", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["parameters"], plan["speed"]) == (PUBLISHED_PARAMETERS, "fast")
    assert plan["extras"] == {"operators": 6_000_000_000}
    assert plan["max_memory"] == {"0": "72GB", "cpu": "64GB"}


def test_a_plan_as_text_begins_with_the_class(
    llama: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["plan", f"{llama}/config.json", *MACHINE, "--dtype", "int8"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("FAST  ")
    assert said.err == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--extra", "operators"], "--extra operators is neither NAME=GB"),
        (["--extra", "=6"], "--extra =6 is neither NAME=GB"),
        (["--phase", "rollout"], "--phase rollout is not NAME:SETTING,SETTING"),
        (["--phase", "a:batch=x"], "'x' is not a number from 1"),
        (["--extra", "operators=-1"], "write for example --extra operators=6"),
        (["--extra", "operators=nan"], "write for example --extra operators=6"),
        (["--extra", "operators=174M*complex65"], "write for example --extra operators=6"),
        (["--extra", "operators=1MM*int8"], "nor NAME=COUNT*TYPE"),
        (["--extra", "operators=*int8"], "nor NAME=COUNT*TYPE"),
        (["--gpus", "-1"], "-1 is not in the range"),
        (["--gpu-memory", "-80"], "'-80' is not a number above 0"),
        (["--gpu-memory", "inf"], "'inf' is not a number above 0"),
        (["--context", "0"], "0 is not in the range"),
        (["--batch", "many"], "'many' is not a valid whole number"),
        (["--dtype", "float8"], "'float8' is not one of"),
    ],
)
def test_a_slip_is_one_sentence(
    llama: str, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["plan", llama, *MACHINE, *arguments]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert said in output.err
    assert output.err.startswith("hangcheck: ")
    assert output.err.count("\n") == 1
