"""`hangcheck` itself: its commands, its help, its failures; and the skill it writes."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from processes import run_python
from report.constructed import verdict

from lightning_hangcheck.cli.explain_command import SKILL_FILE
from lightning_hangcheck.cli.main import COMMANDS, command_named, invoke
from lightning_hangcheck.cli.showing import BAD_USAGE, HANG, exit_code_of
from lightning_hangcheck.errors import NoJobFound
from lightning_hangcheck.launch.run import ABORTED
from lightning_hangcheck.model.codec import encode_pretty
from lightning_hangcheck.model.slugs import CAUSES, VERDICT_KINDS
from lightning_hangcheck.model.verdict import Verdict
from lightning_hangcheck.model.words import PHASES
from lightning_hangcheck.version import __version__

if TYPE_CHECKING:
    from pathlib import Path

    from lightning_hangcheck.model.slugs import VerdictKind


@pytest.mark.parametrize(
    ("words", "what", "remedy"),
    [
        ("rnu", "no such command 'rnu'", "see: hangcheck --help"),
        ("run", "run needs a command to run", "hangcheck run -- torchrun"),
        ("run --on-hang stop -- true", "'--on-hang'", "see: hangcheck run --help"),
        ("run --stal-timeout 3 -- true", "--stal-timeout", "hangcheck run --help"),
        ("run --set price=cheap -- true", "price cheap is not a price", "example 0.89/h"),
        ("run --prometheus . -- true", "--prometheus .: it is a folder", "a file in"),
        ("run --run-dir used -- touch started", "used already holds a run", "name another"),
        ("run --nodes-port 29511 -- true", "a secret of 16 characters or more", "; export "),
        *(
            (f"run --stall-timeout={text} -- true", "--stall-timeout", "write for example 30")
            for text in ("0", "-1", "soon", "nan", "inf", "")
        ),
        *(
            (f"run --set {assignment} -- true", f"--set {what}", remedy)
            for assignment, what, remedy in (
                ("idle_after", "idle_after has no value", "--set idle_after=60"),
                ("idle_aftr=3", "idle_aftr: there is no such setting", "did you mean idle_after"),
                ("idle_after=soon", "idle_after='soon' cannot be used (it is no number)", "=30"),
                ("nodes_port=0", "nodes_port='0' cannot be used (it is no port", "=29511"),
                (
                    "on_hang=kill",
                    "on_hang='kill' cannot be used (it is none of report",
                    "--set on_hang=report",
                ),
            )
        ),
        ("attach --pid x", "'x' is not a valid whole number", "see: hangcheck attach --help"),
        ("attach --pid 0", "0 is not in the range", "see: hangcheck attach --help"),
        ("attach --run-dir used --pid 1", "used already holds a run", "name another"),
        ("watch", "there is no run below", "name a run folder, or start one: hangcheck run"),
        ("report a b", "report takes one run folder", "hangcheck report RUN_DIR"),
        ("report --html", "'--html' requires an argument", "see: hangcheck report --help"),
        ("report --prompt --issue", "report writes one form at a time", "name one of --html"),
        ("report --perfetto t --json", "report writes one form at a time", "name one of --html"),
        ("ledger --json --csv", "ledger writes one form at a time", "name one of --chart"),
        ("ledger --json --chart x", "ledger writes one form at a time", "name one of --chart"),
        ("lint --json --sarif", "lint writes one form at a time", "name one of --github"),
        ("run --slow-after x -- true", "'x' is not a number above 0, 0, none or off", "example 30"),
        ("doctor --fresh nan", "'nan' is not a number above 0", "write for example 30"),
        ("ledger --ledger used/run.json", "no line of", "name a ledger with --ledger"),
        ("ledger --ledger .", "cannot be read (Is a directory)", "name another file: --ledger"),
        ("merge", "merge needs the run folders", "hangcheck merge node0-run"),
        ("postmortem", "postmortem needs files or folders", "hangcheck postmortem ."),
        ("postmortem nowhere", "nowhere is not there", "hangcheck postmortem PATH"),
        ("explain rank_staled", "'rank_staled' is not a cause", "did you mean rank_stalled"),
        ("explain banana", "'banana' is not a cause", "list them: hangcheck explain"),
        ("doctor --only weather", "'weather' is not one of", "see: hangcheck doctor --help"),
        ("doctor --expect a", "--expect needs a place to look", "--checkpoints PLACE"),
        ("rehearse", "rehearse needs a command to run", "write it behind two dashes"),
        ("rehearse --scene fire -- torchrun x.py", "no scene 'fire'", "name one of"),
        ("rehearse -- no-such-program", "'no-such-program' cannot be started", "rehearse -- pyth"),
        ("rehearse -- sh train.sh", "cannot be rehearsed: sh is neither torchrun", "; "),
        ("rehearse --ranks 1 -- x", "1 is not in the range 2<=x<=16", "hangcheck rehearse --help"),
        ("smoke --limit soon", "'soon' is not a number above 0", "write for example 30"),
        ("smoke -- nosuch", "'nosuch' cannot be started (no such program", "smoke -- python"),
        *(
            (f"plan model --gpus 0 {option}", what, "; ")
            for option, what in (
                ("--extra operators", "--extra operators is neither NAME=GB"),
                ("--extra operators=*int8", "nor NAME=COUNT*TYPE"),
                ("--gpus -1", "-1 is not in the range"),
                ("--batch many", "'many' is not a valid whole number"),
            )
        ),
    ],
)
def test_bad_usage_is_one_line(
    words: str,
    what: str,
    remedy: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HANGCHECK_NODES_TOKEN", raising=False)
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "run.json").write_text("{}")
    assert invoke(words.split()) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("hangcheck: ")
    assert output.err.count("\n") == 1
    assert what in output.err
    assert remedy in output.err
    assert [path.name for path in tmp_path.iterdir()] == ["used"]


def test_alone_it_shows_each_command_by_when_it_helps(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke([]) == 0
    shown = capsys.readouterr().out
    titles = ["Before a run:", "While it runs:", "It is stuck:", "It is dead:"]
    assert [line for line in shown.splitlines() if line in titles] == titles
    words = {line.split()[0] for line in shown.splitlines() if line.startswith("  ")}
    assert words >= set(COMMANDS)


@pytest.mark.parametrize(
    "words", ["", *COMMANDS, "ledger check", "ledger compare"], ids=lambda words: words or "alone"
)
def test_help_fits_on_a_screen_and_has_examples(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke([*words.split(), "--help"]) == 0
    text = capsys.readouterr().out
    assert len(text.splitlines()) <= 45
    assert max(map(len, text.splitlines())) <= 100
    assert text.partition("Examples:\n")[2].startswith("    hangcheck ")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["--version"]) == 0
    assert capsys.readouterr().out == f"hangcheck {__version__}\n"


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
    report = run_python("-c", INTERRUPTED, tmp_path)
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
    ran = run_python("-c", LOADED, " ".join(never), *arguments)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("kind", VERDICT_KINDS)
def test_only_a_hang_that_was_found_gives_three(kind: VerdictKind) -> None:
    """A script may end a job on 3; a suspicion, a slow job and a recovery are no reason to."""
    assert exit_code_of(verdict(kind)) == (3 if kind in ("hang", "dead", "crashed") else 0)


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


def typed(
    folder: Path, *words: str, line: str = '"$@"', **options: Any
) -> subprocess.CompletedProcess[bytes]:
    """What becomes of ``hangcheck`` and these words, behind a shell's redirections."""
    command = ["/bin/sh", "-c", line, "sh", sys.executable, "-m", "lightning_hangcheck", *words]
    return subprocess.run(
        command, cwd=folder, capture_output=True, timeout=120, check=False, **options
    )


NO_SPACE = b"hangcheck: the output cannot be written (No space left on device)"


@pytest.mark.parametrize(
    ("shell", "code", "said"),
    [('"$@" >&-', 0, b""), ('"$@" <&- >&- 2>&-', 0, b""), ('"$@" >/dev/full', 2, NO_SPACE)],
)
@pytest.mark.parametrize("arguments", [["explain"], ["--help"], ["lint", "empty.py"]])
def test_an_output_that_is_closed_or_full_is_no_traceback(
    arguments: list[str], shell: str, code: int, said: bytes, tmp_path: Path
) -> None:
    (tmp_path / "empty.py").write_text("")
    ended = typed(tmp_path, *arguments, line=shell)
    assert ended.returncode == code, ended.stderr
    assert ended.stderr.partition(b";")[0].strip() == said


def test_a_closed_output_stays_closed_for_the_command(tmp_path: Path) -> None:
    """And no file of ours takes its number, into which the command would then print."""
    look = "import os, sys; sys.exit(7 if os.path.exists('/proc/self/fd/1') else 8)"
    words = ["run", "--run-dir", "run", "--", sys.executable, "-c", look]
    ended = typed(tmp_path, *words, line='"$@" >&-')
    assert ended.returncode == 8, ended.stderr


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("rnu", 2),
        ("report run", 0),
        ("report --json run", 0),
        ("report --prompt run", 0),
        ("explain rank_diverged", 0),
        ("explain --agent", 0),
        ("attach --pid 999999999", 4),
        ("merge run", 4),
        ("run --run-dir new -- true", 0),
    ],
)
def test_no_command_needs_a_terminal(words: str, code: int, tmp_path: Path) -> None:
    """In a session of its own, which has none, and without any standard input."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "verdict.json").write_bytes(encode_pretty(verdict("hang")))
    ended = typed(tmp_path, *words.split(), line='exec "$@" <&-', start_new_session=True)
    assert ended.returncode == code, ended.stderr
    assert b"Traceback" not in ended.stderr
