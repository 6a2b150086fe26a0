"""What agents are told is true word by word, and no command of theirs needs a terminal."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING

import msgspec
import pytest
from cases import IN_WANDB, job, rank

from lightning_hangcheck.cli.commands.explain_command import SKILL_FILE
from lightning_hangcheck.cli.main import BAD_USAGE, command_named, invoke
from lightning_hangcheck.cli.showing import HANG
from lightning_hangcheck.errors import NoJobFound
from lightning_hangcheck.judge import judge
from lightning_hangcheck.launch.run import ABORTED
from lightning_hangcheck.model.codec import encode_pretty
from lightning_hangcheck.model.slugs import CAUSES, PHASES, VERDICT_KINDS
from lightning_hangcheck.model.verdict import Verdict

if TYPE_CHECKING:
    from pathlib import Path

TEXT = SKILL_FILE.read_text()
CODE = re.findall(r"`([^`\n]+)`", TEXT)
COMMANDS = sorted({words for words in CODE if words.startswith("hangcheck ")})
FILES = {"verdict.json", "run.json", "report.html", "hangcheck_runs"}
OTHER_WORDS = {"ranks", "is_global_zero"}
EXIT_CODES = {"0", "1", str(BAD_USAGE), str(HANG), str(NoJobFound.exit_code), str(ABORTED), "other"}


def test_it_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["explain", "--agent"]) == 0
    assert capsys.readouterr().out == TEXT
    assert TEXT.startswith("---\nname: hangcheck\ndescription: ")


@pytest.mark.parametrize("line", COMMANDS)
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
