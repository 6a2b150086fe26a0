"""Scripts that never heard of us: they run as without us, and what is seen of them."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from hooks.launching import (
    PACKAGE,
    as_rank,
    as_script,
    carried_journals,
    page_of,
    run_program,
    run_script,
)
from long_tests import real_when_asked_for

from lightning_hangcheck.report.journals import read_journal

if TYPE_CHECKING:
    from pathlib import Path

PROGRAMS = {
    "forks": """
import datasets, os, sys
print("parent", flush=True)
child = os.fork()
if not child:
    print("child", flush=True)
    sys.exit(4)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
""",
    "spawns": """
import datasets, multiprocessing, sys

def work(number):
    import datasets
    return number * number

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(work, [1, 2, 3]))
    child = multiprocessing.get_context("spawn").Process(target=sys.exit, args=(6,))
    child.start()
    child.join()
    print(child.exitcode)
""",
    "execs itself": """
import datasets, os, sys
print(sys.argv, flush=True)
if len(sys.argv) == 1:
    os.execv(sys.executable, [sys.executable, *sys.argv, "again"])
""",
    "ends at once": """
import datasets, os
print("nothing is flushed")
os._exit(9)
""",
    "exits late": """
import atexit, datasets, threading, sys
atexit.register(print, "handler")
threading.Timer(0.2, print, ["thread"]).start()
sys.exit("last words")
""",
    "raises": """
import datasets
raise KeyError("sample")
""",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_output_and_exit_code_are_the_programs_own(name: str, tmp_path: Path) -> None:
    (tmp_path / "datasets.py").write_text("")
    script = tmp_path / "train.py"
    script.write_text(PROGRAMS[name])
    plain = run_script(script, {}, PACKAGE)
    rank, other = run_script(script, *as_rank(tmp_path)), run_script(script, *as_script(tmp_path))
    assert rank[:2] == other[:2] == plain[:2]
    for errors in (rank[2], other[2]):
        others = [
            line for line in errors.splitlines() if "CHECKPOINT 1: Script started" not in line
        ]
        assert others == plain[2].splitlines()


# What a process under `hangcheck run` imports at its start, which is what its start costs.


def modules_of(tmp_path: Path, environment: dict[str, str], python_path: str) -> set[str]:
    script = tmp_path / "show.py"
    script.write_text("import sys\nprint(*sorted(sys.modules), sep='\\n')\n")
    code, out, errors = run_script(script, environment, python_path)
    assert (code, errors) == (0, "")
    return set(out.split())


@pytest.mark.parametrize("is_of_a_job", [False, True])
def test_what_is_no_rank_imports_nothing_for_us(tmp_path: Path, is_of_a_job: bool) -> None:
    plain = modules_of(tmp_path, {}, PACKAGE)
    watched, python_path = as_script(tmp_path)
    more = modules_of(tmp_path, watched if is_of_a_job else {}, python_path) - plain
    assert {name.partition(".")[0] for name in more} <= {
        *("sitecustomize", "gc", "importlib", "_frozen_importlib", "_frozen_importlib_external"),
        *("_imp", "_warnings", "warnings"),
    }


def test_a_rank_imports_no_judgement_and_nothing_that_frameworks_need(tmp_path: Path) -> None:
    watched, python_path = as_rank(tmp_path)
    names = modules_of(tmp_path, {**watched, "HANGCHECK_CONSOLE": "off"}, python_path)
    assert "lightning_hangcheck.recorder.lifecycle" in names
    rooms = {"judge", "look", "observe", "watch", "report", "cli", "doctor", "alerts"}
    ours = {name.split(".")[1] for name in names if name.startswith("lightning_hangcheck.")}
    assert ours.isdisjoint(rooms)
    assert "lightning_hangcheck.model.verdict" not in names
    foreign = {"wrapt", "psutil", "rich", "click", "torch", "asyncio", "subprocess"}
    foreign |= {"msgspec", "typing", "inspect", "dataclasses"}  # each takes 4 to 15 ms
    assert names.isdisjoint({*foreign, "importlib.metadata", "multiprocessing", "ctypes"})


def test_the_collector_does_not_look_at_what_a_rank_imported_for_us(tmp_path: Path) -> None:
    script = tmp_path / "count.py"
    script.write_text("import gc\nprint(len(gc.get_objects()), gc.isenabled())\n")
    plain, ours = (
        run_script(script, {**environment, "HANGCHECK_CONSOLE": "off"}, path)[1].split()
        for environment, path in (({}, PACKAGE), as_rank(tmp_path))
    )
    assert int(ours[0]) <= int(plain[0])
    assert ours[1] == plain[1] == "True"


# Loops, saves and Trainers of scripts that never heard of us.

STEPS = 2
SAID = [
    "CHECKPOINT 1: Script started", "Trainer constructor", "Accelerator constructor",
    "CHECKPOINT 8: Accelerator configured", "CHECKPOINT 11: Trainer ready (prime suspect)",
    "Trainer.train", "DataLoader constructor", "first batch of a DataLoader",
    "Trainer.save_checkpoint", "CHECKPOINT 12: Training finished", "Trainer.evaluate",
]  # fmt: skip


@pytest.mark.real
def test_hugging_faces_trainer_is_seen_to_its_end(tmp_path: Path) -> None:
    watched = run_program("unaware_huggingface.py", tmp_path, *as_script(tmp_path))
    assert watched[0] == 0, watched[2]
    assert watched[1].splitlines()[-1] == f"{STEPS} steps"
    lines = re.findall(r"\] (?:About to call (.+)\.\.\.|(CHECKPOINT .+))", watched[2])
    assert list(dict.fromkeys(call or checkpoint for call, checkpoint in lines)) == SAID
    assert watched[2].count("Trainer constructor returned") <= 1
    assert page_of(tmp_path).step == STEPS, "what wraps an optimizer makes no second step of one"
    (journal,) = carried_journals(tmp_path)
    entries, _ = read_journal(journal)
    assert "is no longer watched" not in watched[2]
    assert "is switched off" not in watched[2]
    assert entries[-1]["kind"] == "finished"
    assert [entry["kind"] for entry in entries].count("saved") == 1


@pytest.mark.real
def test_a_lightning_trainers_callbacks_stay_as_the_user_made_them(tmp_path: Path) -> None:
    """Ours is called beside them: the page has the steps that it tells."""
    script = "unaware_callbacks.py"
    watched = run_program(script, tmp_path, *as_script(tmp_path))
    plain = run_program(script, tmp_path, {}, PACKAGE)
    assert watched[0] == plain[0] == 0, watched[2]
    assert json.loads(watched[1]) == json.loads(plain[1])
    assert json.loads(watched[1])["empty"]
    beat = page_of(tmp_path)
    assert (beat.step, beat.epoch, beat.phase) == (40, 1, "teardown")
    assert (beat.batch, beat.beats > 40) == (39, True), "quick batches, too, which no hook shows"


LOOP_STEPS = 4


@real_when_asked_for
@pytest.mark.parametrize("loop", ["plain", "adversaries"])
def test_a_loop_has_steps_and_beats(loop: str, tmp_path: Path) -> None:
    watched, python_path = as_script(tmp_path)
    code, _, errors = run_program("stepping.py", tmp_path, {**watched, "LOOP": loop}, python_path)
    assert code == 0, errors
    beat = page_of(tmp_path)
    assert beat.step == LOOP_STEPS
    assert beat.beats >= LOOP_STEPS
    assert loop == "adversaries" or beat.beats == LOOP_STEPS


@real_when_asked_for
@pytest.mark.parametrize("how", ["weights", "apart"])
def test_weights_alone_are_said_once_and_parts_in_other_files_not_missed(
    how: str, tmp_path: Path
) -> None:
    watched, python_path = as_rank(tmp_path)
    ours = {**watched, "SAVES": how}
    code, _, errors = run_program("saving_plainly.py", tmp_path, ours, python_path)
    assert code == 0, errors
    lines = errors.count("the checkpoints saved so far hold no optimizer state")
    assert lines == (1 if how == "weights" else 0)


# A script that loads and generates plainly: the same tokens, and it is said what happens.


def printed(folder: Path, environment: dict[str, str], python_path: str) -> tuple[str, str]:
    """The last line of its output, and all of its errors."""
    folder.mkdir(exist_ok=True)
    ours = {**environment, "HF_HUB_OFFLINE": "1"}
    code, output, errors = run_program("unaware_generating.py", folder, ours, python_path)
    assert code == 0, errors
    return output.splitlines()[-1], errors


@real_when_asked_for
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
