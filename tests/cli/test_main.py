"""Bad usage is one line that says what to write instead, help is help, and exit codes hold."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from report.constructed import verdict

from lightning_hangcheck.cli.main import COMMANDS, invoke
from lightning_hangcheck.cli.showing import exit_code_of
from lightning_hangcheck.model.slugs import VERDICT_KINDS
from lightning_hangcheck.version import __version__

if TYPE_CHECKING:
    from pathlib import Path

    from lightning_hangcheck.model.slugs import VerdictKind


@pytest.mark.parametrize(
    ("arguments", "what", "remedy"),
    [
        (["rnu"], "no such command 'rnu'", "see: hangcheck --help"),
        (["run"], "run needs a command to run", "hangcheck run -- torchrun"),
        (["run", "--"], "run needs a command to run", "hangcheck run -- torchrun"),
        (["run", "--on-hang", "stop", "--", "true"], "'--on-hang'", "see: hangcheck run --help"),
        (["run", "--stal-timeout", "3", "--", "true"], "--stal-timeout", "hangcheck run --help"),
        (
            ["attach", "--pid", "x"],
            "'x' is not a valid whole number",
            "see: hangcheck attach --help",
        ),
        (["attach", "--pid", "0"], "0 is not in the range", "see: hangcheck attach --help"),
        (["report", "--html"], "'--html' requires an argument", "see: hangcheck report --help"),
        (["ledger", "--json", "--csv"], "writes one form", "name one of --json, --csv"),
        (["run", "--stall-timeout", "0", "--", "true"], "'0' is not a number above 0", "30"),
        (["merge"], "merge needs the run folders", "hangcheck merge node0-run"),
        (["postmortem"], "postmortem needs files or folders", "hangcheck postmortem ."),
        (["postmortem", "nowhere"], "nowhere is not there", "hangcheck postmortem PATH"),
        (["report", "a", "b"], "report takes one run folder", "hangcheck report RUN_DIR"),
    ],
)
def test_bad_usage_is_one_line(
    arguments: list[str], what: str, remedy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("hangcheck: ")
    assert output.err.count("\n") == 1
    assert what in output.err
    assert remedy in output.err


def test_alone_it_shows_each_command_by_when_it_helps(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke([]) == 0
    shown = capsys.readouterr().out
    titles = ["Before a run:", "While it runs:", "It is stuck:", "It is dead:"]
    assert [line for line in shown.splitlines() if line in titles] == titles
    words = {line.split()[0] for line in shown.splitlines() if line.startswith("  ")}
    assert words >= set(COMMANDS)


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_has_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke([*filter(None, [command]), "--help"]) == 0
    examples = capsys.readouterr().out.partition("Examples:\n")[2]
    assert examples.startswith("    hangcheck ")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["--version"]) == 0
    assert capsys.readouterr().out == f"hangcheck {__version__}\n"


def test_module_is_the_command() -> None:
    module = subprocess.run(
        [sys.executable, "-m", "lightning_hangcheck", "rnu"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert module.returncode == 2
    assert module.stderr.startswith("hangcheck: no such command 'rnu'")


INTERRUPTED = """
import os, signal, sys
from lightning_hangcheck.cli.main import invoke

def interrupt(event, arguments):
    if event == "open" and str(arguments[0]).endswith("verdict.json"):
        os.kill(os.getpid(), signal.SIGINT)

sys.addaudithook(interrupt)
sys.exit(invoke(["report", sys.argv[1]]))
"""


def test_ctrl_c_is_tidy(tmp_path: Path) -> None:
    """Interrupted as it opens the verdict: no traceback, the exit code of shells."""
    (tmp_path / "verdict.json").write_text("{}")
    command = [sys.executable, "-c", INTERRUPTED, str(tmp_path)]
    report = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert report.returncode == 130
    assert "Traceback" not in report.stderr


GUESTS = ("torch", "lightning", "pytorch_lightning", "wandb", "transformers", "rich")
OF_CHECKS = ("psutil", "ssl", "http.client", "lightning_hangcheck.doctor.examination")
OTHERS = ("lightning_hangcheck.doctor", "lightning_hangcheck.report")
LOADED = """
import sys
from lightning_hangcheck.cli.main import invoke

never, *arguments = sys.argv[1:]
invoke(arguments)
sys.exit(", ".join(one for one in never.split() if one in sys.modules) or 0)
"""


@pytest.mark.parametrize(
    ("arguments", "never"),
    [
        # a run folder is read on a laptop where no training could ever run
        (["report", "/"], GUESTS),
        # it stands before every training
        (["run", "--help"], (*GUESTS, *OF_CHECKS, *OTHERS)),
        (["--help"], (*GUESTS, *OF_CHECKS)),
    ],
    ids=" ".join,
)
def test_a_command_loads_nothing_that_it_does_not_need(
    arguments: list[str], never: tuple[str, ...]
) -> None:
    command = [sys.executable, "-c", LOADED, " ".join(never), *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr


HANGS = ("hang", "dead", "crashed")


@pytest.mark.parametrize("kind", VERDICT_KINDS)
def test_only_a_hang_that_was_found_gives_three(kind: VerdictKind) -> None:
    """A script may end a job on 3; a suspicion, a slow job and a recovery are no reason to."""
    assert exit_code_of(verdict(kind)) == (3 if kind in HANGS else 0)
