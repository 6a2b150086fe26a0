"""What a process under `hangcheck run` imports at its start, which is what its start costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hooks.launching import PACKAGE, as_rank, as_script, run_script

if TYPE_CHECKING:
    from pathlib import Path

SHOW_MODULES = "import sys\nprint(*sorted(sys.modules), sep='\\n')\n"


def modules_of(tmp_path: Path, environment: dict[str, str], python_path: str) -> set[str]:
    script = tmp_path / "show.py"
    script.write_text(SHOW_MODULES)
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
