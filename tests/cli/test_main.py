"""`hangcheck` itself: its commands, its help, its failures; and the skill it writes."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING

import msgspec
import pytest
from cases import IN_WANDB, job, rank
from report.constructed import verdict

from lightning_hangcheck.cli.commands.explain_command import SKILL_FILE
from lightning_hangcheck.cli.main import BAD_USAGE, COMMANDS, command_named, invoke
from lightning_hangcheck.cli.showing import HANG, exit_code_of
from lightning_hangcheck.errors import NoJobFound
from lightning_hangcheck.judge import judge
from lightning_hangcheck.launch.run import ABORTED
from lightning_hangcheck.model.codec import encode_pretty
from lightning_hangcheck.model.slugs import CAUSES, PHASES, VERDICT_KINDS
from lightning_hangcheck.model.verdict import Verdict
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
        (
            ["run", "--set", "price=cheap", "--", "true"],
            "price cheap is not a price",
            "example 0.89/h",
        ),
        (["run", "--prometheus", ".", "--", "true"], "--prometheus .: it is a folder", "a file in"),
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
        (["lint", "tests/lint"], GUESTS),
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


TEXT = SKILL_FILE.read_text()

CODE = re.findall(r"`([^`\n]+)`", TEXT)

IN_THE_SKILL = sorted({words for words in CODE if words.startswith("hangcheck ")})

FILES = {"verdict.json", "run.json", "report.html", "hangcheck_runs"}

OTHER_WORDS = {"ranks", "is_global_zero"}

EXIT_CODES = {"0", "1", str(BAD_USAGE), str(HANG), str(NoJobFound.exit_code), str(ABORTED), "other"}


def test_it_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["explain", "--agent"]) == 0
    assert capsys.readouterr().out == TEXT
    assert TEXT.startswith("---\nname: hangcheck\ndescription: ")


@pytest.mark.parametrize("line", IN_THE_SKILL)
def test_every_command_and_option_exists(line: str) -> None:
    """Parsed by the real command line; what stands for the user's words is a word there."""
    _, name, *words = shlex.split(line)
    command_named(name).make_context(name, words)


def test_every_word_is_one_of_the_contract() -> None:
    words = {word for word in CODE if re.fullmatch(r"[a-z_]+", word)}
    fields = {field.name for field in msgspec.structs.fields(Verdict)}
    assert words <= {*VERDICT_KINDS, *CAUSES, *PHASES, *fields, *FILES, *OTHER_WORDS}
    assert words & set(CAUSES)


def test_every_exit_code_is_real() -> None:
    table = TEXT.partition("## Exit codes")[2].partition("##")[0]
    told = set(re.findall(r"^\| [^|]+ \| (\w+) \|", table, re.MULTILINE)) - {"code"}
    assert told == EXIT_CODES


@pytest.mark.parametrize(
    ("shell", "code", "said"),
    [
        ('"$@" >&-', 0, b""),
        ('"$@" <&- >&- 2>&-', 0, b""),
        (
            '"$@" >/dev/full',
            2,
            b"hangcheck: the output cannot be written (No space left on device)",
        ),
    ],
)
@pytest.mark.parametrize("arguments", [["explain"], ["--help"], ["lint", "empty.py"]])
def test_an_output_that_is_closed_or_full_is_no_traceback(
    arguments: list[str], shell: str, code: int, said: bytes, tmp_path: Path
) -> None:
    (tmp_path / "empty.py").write_text("")
    words = [sys.executable, "-m", "lightning_hangcheck", *arguments]
    ended = subprocess.run(
        ["/bin/sh", "-c", shell, "sh", *words],
        cwd=tmp_path,
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == code, ended.stderr
    assert ended.stderr.partition(b";")[0].strip() == said


def test_a_closed_output_stays_closed_for_the_command(tmp_path: Path) -> None:
    """And no file of ours takes its number, into which the command would then print."""
    look = "import os, sys; sys.exit(7 if os.path.exists('/proc/self/fd/1') else 8)"
    words = [sys.executable, "-m", "lightning_hangcheck", "run", "--run-dir", "run", "--"]
    ended = subprocess.run(
        ["/bin/sh", "-c", '"$@" >&-', "sh", *words, sys.executable, "-c", look],
        cwd=tmp_path,
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 8, ended.stderr


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["report", "RUN"], 0),
        (["report", "--json", "RUN"], 0),
        (["report", "--prompt", "RUN"], 0),
        (["explain", "rank_diverged"], 0),
        (["explain", "--agent"], 0),
        (["attach", "--pid", "999999999"], 4),
        (["merge", "RUN"], 2),
        (["run"], 2),
        (["run", "--run-dir", "NEW", "--", sys.executable, "-c", "pass"], 0),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, list) else None,
)
def test_no_command_needs_a_terminal(arguments: list[str], code: int, tmp_path: Path) -> None:
    """In a session of its own, which has none, and without any standard input."""
    run = tmp_path / "run"
    run.mkdir()
    verdict = judge(job(rank(0, IN_WANDB, silent=400.0), rank(1, IN_WANDB, silent=400.0)))
    (run / "verdict.json").write_bytes(encode_pretty(verdict))
    places = {"RUN": str(run), "NEW": str(tmp_path / "new")}
    words = [places.get(word, word) for word in arguments]
    closing = 'exec "$@" <&-'
    ended = subprocess.run(
        ["/bin/sh", "-c", closing, "sh", sys.executable, "-m", "lightning_hangcheck", *words],
        cwd=tmp_path,
        capture_output=True,
        start_new_session=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == code, ended.stderr
    assert b"Traceback" not in ended.stderr
