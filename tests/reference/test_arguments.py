"""The reference script: command line, faults that strike, pauses and text."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from processes import end, until
from reference.arguments import parse_arguments, stays_alone
from reference.faults import parse_fault
from reference.injection import Injection
from reference.pauses import Pauses
from reference.strikes import FAULT_MARK_VARIABLE
from reference.tokenizer import END_OF_TEXT, VOCABULARY_SIZE, corpus_files, load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable

    from reference.arguments import Arguments

TWO_RANKS = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}


def _parse(words: str, **environment: str) -> Arguments:
    return parse_arguments(words.split(), environment)


@pytest.mark.parametrize("words", ["--local-rank=1", "--local_rank 1"])
def test_the_local_rank_of_torch_distributed_launch_is_accepted(words: str) -> None:
    """It says no more than the variable of that name, which the launcher sets as well."""
    assert _parse(words, **TWO_RANKS) == _parse("", **TWO_RANKS)


@pytest.mark.parametrize(
    ("words", "environment", "alone"),
    [
        ("", {}, True),
        ("--devices 2", {}, False),
        ("--strategy ddp_spawn", {}, False),
        ("", TWO_RANKS, False),
        ("", {"LOCAL_RANK": "0"}, False),
        ("", {"WORLD_SIZE": "2"}, False),
        ("", {"SLURM_NNODES": "2"}, False),
    ],
)
def test_only_a_process_that_nobody_joins_stays_alone(
    words: str, environment: dict[str, str], alone: bool
) -> None:
    assert stays_alone(_parse(words, **environment), environment) == alone


@pytest.mark.parametrize(
    ("words", "field", "value"),
    [
        ("", "devices", 2),
        ("--inject dataloader_worker@1", "num_workers", 1),
        ("--num_workers 3 --inject dataloader_worker@1", "num_workers", 3),
        ("--inject slow_save@0:7", "save_every", 7),
    ],
)
def test_what_is_not_said_follows_from_the_launcher_and_the_fault(
    words: str, field: str, value: int
) -> None:
    assert getattr(_parse(words, **TWO_RANKS), field) == value


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--inject frozen@1", "'frozen@1' names no fault; use one of rank_stalled, spinning"),
        ("--inject spinning", "'spinning' is not CAUSE@RANK[:STEP]"),
        ("--inject logger_init@0:3", "write logger_init@0"),
        ("--inject rendezvous@1:0", "write rendezvous@1"),
        ("--inject straggler@1:1", "write straggler@1:2 or a later step"),
        ("--inject slow_save@1", "write slow_save@0"),
        ("--inject spinning@7", "there is no rank 7 in a world of 1; write a rank from 0 to 0"),
        ("--inject rendezvous@0", "start the script with torchrun"),
        ("--max_steps many", "'many' is not a whole number"),
        ("--max_steps -3", "'-3' is not a whole number"),
        ("--nonsense", "--nonsense"),
    ],
)
def test_bad_usage_is_one_sentence_and_exit_2(
    words: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        _parse(words)
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert said.count("\n") == 1
    assert sentence in said


def test_every_run_has_the_same_pauses_and_every_rank_its_own() -> None:
    drawn = (Pauses(rank) for rank in (1, 1, 0))
    first, again, other = ([pauses.next_s() for _ in range(50)] for pauses in drawn)
    assert first == again
    assert first != other


def test_a_tokenizer_is_trained_once_then_read_and_text_survives_it(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(tmp_path / "new")
    (file,) = (tmp_path / "new").iterdir()
    written = file.stat().st_mtime_ns
    assert load_tokenizer(tmp_path / "new").to_str() == tokenizer.to_str()
    assert file.stat().st_mtime_ns == written
    text = corpus_files()[-1].read_text() + "Zoë ⇒ 42"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.get_vocab_size() == VOCABULARY_SIZE
    assert tokenizer.token_to_id(END_OF_TEXT) == 0


SCRIPTS = Path(__file__).parent.parent.parent / "scripts"
STRIKER = """
import sys
from reference.faults import parse_fault
from reference.injection import Injection
injection = Injection([parse_fault(sys.argv[1])], rank=1)
for step in range(3):
    injection.before_step(step)
    injection.in_worker(0, step)
"""


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that a strike appends its moment to."""
    monkeypatch.setenv(FAULT_MARK_VARIABLE, str(tmp_path / "mark"))
    return tmp_path / "mark"


def _inject(*faults: str, rank: int = 1) -> Injection:
    return Injection([parse_fault(fault) for fault in faults], rank)


def test_strike_says_so_and_marks_the_moment(mark: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Benchmarks subtract the mark from the moment of detection."""
    before = time.monotonic_ns()
    with pytest.raises(ValueError, match="loss of batch 4 is not a number"):
        _inject("crashed@1:4").before_step(4)
    moment, cause = mark.read_text().split()
    assert before <= int(moment) <= time.monotonic_ns()
    assert cause == "crashed"
    assert "[inject] crashed strikes rank 1 at step 4" in capfd.readouterr().err


def test_nothing_strikes_before_its_step_or_on_another_rank(mark: Path) -> None:
    for step in range(4):
        _inject("crashed@1:4").before_step(step)
    other = _inject("crashed@1:4", "logger_init@1", "rendezvous@1", rank=0)
    other.before_step(4)
    other.before_rendezvous()
    assert not other.before_logger()
    assert not mark.exists()


@pytest.mark.parametrize(
    ("fault", "has_come"),
    [
        ("rank_stalled@1:2", lambda process: process.status() == psutil.STATUS_SLEEPING),
        ("dataloader_worker@1:2", lambda process: process.status() == psutil.STATUS_SLEEPING),
        ("process_stopped@1:2", lambda process: process.status() == psutil.STATUS_STOPPED),
        ("spinning@1:2", lambda process: sum(process.cpu_times()[:2]) > 2.0),
        ("process_dead@1:2", lambda process: process.wait(timeout=120) == -9),
    ],
)
def test_a_fault_does_what_its_name_says(
    fault: str, has_come: Callable[[psutil.Process], bool], mark: Path
) -> None:
    """It has announced itself before."""
    program = {**os.environ, "PYTHONPATH": str(SCRIPTS)}
    started = subprocess.Popen([sys.executable, "-c", STRIKER, fault], env=program)
    try:
        until(mark.exists, f"{fault} to strike")
        process = psutil.Process(started.pid)
        until(lambda: has_come(process), fault)
    finally:
        end(started)


def test_only_the_first_save_is_slow() -> None:
    injection = _inject("slow_save@0:5", rank=0)
    assert [injection.before_save(step) for step in (4, 5, 10)] == [False, True, False]


def test_rendezvous_fault_names_a_port_where_nobody_listens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MASTER_PORT", "1")
    _inject("rendezvous@1").before_rendezvous()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(os.environ["MASTER_PORT"])), timeout=5)


def test_logger_fault_points_rank_zero_at_a_silent_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """It accepts, as the kernel does for it, and never answers."""
    for name in ("WANDB_BASE_URL", "WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.setenv(name, "unset")
    injection = _inject("logger_init@0", rank=0)
    assert injection.before_logger()
    assert injection.silent_server is not None
    port = int(os.environ["WANDB_BASE_URL"].rpartition(":")[2])
    address = ("127.0.0.1", port)
    with injection.silent_server, socket.create_connection(address, timeout=5) as connection:
        connection.settimeout(0.2)
        connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
        with pytest.raises(TimeoutError):
            connection.recv(1)
