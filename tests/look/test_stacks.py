"""Python stacks of processes that are really stuck: by py-spy, or written by themselves."""

from __future__ import annotations

import faulthandler
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import psutil
import pytest
from long_tests import real_when_asked_for
from processes import PATIENCE_S, PROGRAMS, until

from lightning_hangcheck.look.proc import Unseen, has_ended, slept_s, thread_ids
from lightning_hangcheck.look.sample import Target, look_at
from lightning_hangcheck.look.source import Sources
from lightning_hangcheck.look.stacks import (
    LONGEST_VALUE,
    MOST_CALLS,
    MOST_DUMPS,
    PySpyFailed,
    dump,
    innermost_calls,
    native_calls,
    python_stacks,
    read_stacks,
    read_threads,
    signalled_stacks,
)
from lightning_hangcheck.look.threads import training_first
from lightning_hangcheck.machine import read_stat
from lightning_hangcheck.model.evidence import Frame, Gap, ProcessStack, ThreadStack
from lightning_hangcheck.session.session import find_offer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from processes import RunningProgram, StartProgram

    from lightning_hangcheck.model.evidence import LocalValues


@pytest.mark.parametrize(
    ("line", "takes"),
    [
        ("with self.lock:", True),
        ("    with guard:  # of the cache (all of it)", True),
        ("with guard: hits += 1", True),
        ("with guard, other as taken:", True),
        ("self.lock.acquire(timeout=5)", True),
        ("with guard: torch.mm(a, b)", False),
        ("with open(path):", False),
        ("without: int = 1", False),
    ],
)
def test_a_line_that_takes_a_lock_and_calls_nothing_else_is_known(
    tmp_path: Path, line: str, takes: bool
) -> None:
    file = tmp_path / "train.py"
    file.write_text(f"{line}\n")
    assert Sources("", time.time()).takes_lock(str(file), 1) == takes


PACKAGES = "/lib/python3.11/site-packages"
SERVES = (
    Frame("<module>", f"{PACKAGES}/ray/_private/workers/default_worker.py", 9),
    Frame("Worker.main_loop", f"{PACKAGES}/ray/_private/worker.py", 1014),
)
JOINS = (Frame("init_process_group", f"{PACKAGES}/torch/distributed/c.py", 3),)
TRAINS = (
    Frame("Thread._bootstrap", "/lib/python3.11/threading.py", 995),
    Frame("train", "/home/ada/train.py", 12),
)
OF_USER = (Frame("<module>", "/home/ada/train.py", 40),)
LEFT = (Frame("_shutdown", "/lib/python3.11/threading.py", 1600),)


@pytest.mark.parametrize(
    ("threads", "first"),
    [
        ((SERVES, (), TRAINS), "b"),
        ((SERVES, TRAINS, TRAINS), "b"),  # newest first where no ids are known: b was there before
        ((SERVES, SERVES), "m"),
        ((OF_USER, TRAINS), "m"),
        (((*SERVES, *JOINS), TRAINS), "m"),
        ((LEFT, TRAINS), "m"),
        (((), TRAINS), "m"),
    ],
)
def test_the_main_thread_is_first_unless_it_only_serves(
    threads: tuple[tuple[Frame, ...], ...], first: str
) -> None:
    named = [ThreadStack(tid=None, name=n, frames=f) for n, f in zip("mab", threads, strict=False)]
    ordered = training_first(ProcessStack(pid=1, source="", threads=tuple(named))).threads
    assert sorted(one.name for one in ordered) == sorted(one.name for one in named)
    assert ordered[0].name == first


def stands_in_load(running: RunningProgram) -> LocalValues | None:
    look = look_at([Target(pid=running.pid)], PATIENCE_S, with_values=(0,))
    assert look.gaps == ()
    ((_, sample),) = look.samples
    last = sample.local_values[-1] if sample.local_values else None
    return last if last is not None and last.frame.function == "load" else None


@pytest.mark.real
def test_values_are_shown_only_on_request_short_and_without_secrets(program: StartProgram) -> None:
    running = program("holding_secrets.py")
    values = until(lambda: stands_in_load(running), "it to stand in load").values
    ((_, plain),) = look_at([Target(pid=running.pid)], PATIENCE_S).samples
    assert plain.local_values == ()
    assert values["batch"] == "17"
    assert "data/train.bin" in values["path"]
    assert "xxxx" not in str(values)
    assert {name for name, value in values.items() if value == "[redacted]"} == {
        "api_token",
        "passphrase",
        "pw",
    }
    assert len(values["long"]) <= LONGEST_VALUE + len("...")
    # behind keys of dictionaries, second in a tuple, and in whose middle py-spy cuts a text
    assert "secret-" not in str(values)
    assert "text/html" in values["headers"]
    assert values["pair"].startswith('{"auth": [redacted]')
    assert values["cut"] == '"password=[redacted] ..."'


@real_when_asked_for
def test_only_a_closer_look_has_native_calls(program: StartProgram) -> None:
    running = program("sleeping.py")
    ((_, plain),) = look_at([Target(pid=running.pid)], PATIENCE_S).samples
    look = look_at([Target(pid=running.pid)], PATIENCE_S, closer=(0,))
    ((_, closer),) = look.samples
    assert plain.native_calls == ()
    assert look.gaps == ()
    assert any("sleep" in call for call in closer.native_calls)


def test_calls_end_at_the_innermost_python_frame_and_are_bounded() -> None:
    native = [{"name": f"call{number}", "module": "/lib/libc10.so"} for number in range(20)]
    nameless = {"name": "0x7f032024524a", "module": "/lib/libc.so.6"}
    python = {"name": "load", "module": None}
    threads = [
        {"os_thread_id": 8, "frames": [python]},
        {"os_thread_id": 7, "frames": [nameless, *native[:3], python, *native]},
    ]
    assert innermost_calls(msgspec.json.encode(threads), 7) == ("call2", "call1", "call0")
    many = [{"os_thread_id": 7, "frames": [*native, python]}]
    assert len(innermost_calls(msgspec.json.encode(many), 7)) == MOST_CALLS


@real_when_asked_for
def test_a_look_that_is_killed_leaves_nothing_stopped(program: StartProgram) -> None:
    running = program("many_threads.py", "200")
    for limit_s in (0.02, 0.05, 0.1, 0.2):
        native_calls(running.pid, 3, limit_s, running.pid)
        tids = thread_ids(running.pid)
        assert {read_stat(running.pid, tid).state for tid in tids}.isdisjoint("Tt")
    assert running.process.poll() is None


FIRST_CHOICE = signal.SIGRTMIN + 9


@pytest.fixture
def offering(program: StartProgram) -> Iterator[StartProgram]:
    """Starts the program that offers; its session goes with the test."""
    sessions: list[str] = []

    def start(*arguments: str) -> RunningProgram:
        running = program("offering_stacks.py", *arguments)
        sessions.append(running.first_words)
        return running

    yield start
    for session in sessions:
        shutil.rmtree(session, ignore_errors=True)


def why_not(pid: int) -> str:
    """The reason of the one gap; there must be no stack."""
    stack, (gap,) = signalled_stacks(pid, 3, 2.0)
    assert stack is None
    return gap.reason


def innermost(pid: int) -> str:
    """The function in which its main thread stands."""
    stack, gaps = signalled_stacks(pid, 3, PATIENCE_S)
    assert gaps == ()
    return stack.threads[0].frames[-1].function


@real_when_asked_for
def test_it_answers_while_a_call_keeps_the_interpreter_lock_and_again(
    offering: StartProgram,
) -> None:
    running = offering("keeps_the_interpreter_lock")
    until(lambda: innermost(running.pid) == "keeps_the_interpreter_lock", "it to keep the lock")
    assert innermost(running.pid) == "keeps_the_interpreter_lock"


@real_when_asked_for
def test_beyond_a_hundred_threads_the_main_one_is_missing_and_the_gap_says_so(
    offering: StartProgram,
) -> None:
    running = offering("stands_with_many_helpers")
    assert "more than 100 threads" in why_not(running.pid)
    assert "main thread is not among them" in why_not(running.pid)


@real_when_asked_for
def test_a_signal_that_somebody_handles_is_not_taken(offering: StartProgram) -> None:
    taken, free = offering("waits_for_ever", "taken"), offering("waits_for_ever")
    offers = [find_offer(running.pid) for running in (taken, free)]
    assert [offer.signal for offer in offers if offer] == [FIRST_CHOICE + 1, FIRST_CHOICE]


@pytest.mark.real
def test_a_process_that_became_another_program_is_sent_nothing(offering: StartProgram) -> None:
    """It has no handler any more: the signal would end it."""
    running = offering("becomes_another_program")
    until(lambda: psutil.Process(running.pid).name() == "sleep", "the other program")
    assert why_not(running.pid) == f"it no longer handles signal {FIRST_CHOICE}"
    assert running.process.poll() is None


@real_when_asked_for
def test_a_stopped_process_is_left_alone(offering: StartProgram) -> None:
    running = offering("waits_for_ever")
    os.kill(running.pid, signal.SIGSTOP)
    until(lambda: psutil.Process(running.pid).status() == "stopped", "it to stop")
    assert why_not(running.pid) == "it is stopped, so it answers no signal"


@real_when_asked_for
def test_at_its_end_a_process_takes_its_offer_back(offering: StartProgram) -> None:
    running = offering("leaves")
    assert find_offer(running.pid) is not None
    running.tell("leave")
    assert running.process.wait(120) == 0
    assert find_offer(running.pid) is None
    assert list(Path(running.first_words, "stacks").iterdir()) == []


NEWER = """\
Thread 0x00007f00000000b0 [loader] (most recent call first):
  File "/home/ada/data.py", line 17 in __getitem__
  File "/home/ada/data.py", line 9 in work

Current thread 0x00007f00000000a0 [MainThread] (most recent call first):
  File "/home/ada/m\\xfcnchen/\\u8a13\\u7df4.py", line 3 in pr\\xfcfe
  ...
"""


def test_the_main_thread_comes_first_and_calls_run_from_the_outermost() -> None:
    main, loader = read_stacks(NEWER, 4711, 0x7F00000000A0)
    assert (main.tid, main.name) == (4711, "MainThread")
    assert main.frames == (Frame("prüfe", "/home/ada/münchen/訓練.py", 3),)
    assert (loader.tid, loader.name) == (None, "loader")
    assert [frame.function for frame in loader.frames] == ["work", "__getitem__"]


@pytest.mark.parametrize("text", ["", "Fatal Python error: Segmentation fault\n", NEWER[:90]])
def test_without_the_main_thread_nothing_is_claimed(text: str) -> None:
    assert read_stacks(text, 4711, 0x7F00000000A0) == ()


def test_what_this_interpreter_writes_is_understood() -> None:
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file)
        file.seek(0)
        text = file.read()
    main, *_ = read_stacks(text, 1, threading.main_thread().ident or 0)
    functions = [frame.function for frame in main.frames]
    assert functions[-1] == "test_what_this_interpreter_writes_is_understood"


NOW = {"name": "works", "filename": "/home/ada/train.py", "line": 3, "is_shim_entry": False}
OUTERMOST = {"name": "<module>", "filename": "/home/ada/train.py", "line": 9, "is_shim_entry": True}
WHOLE = {"os_thread_id": 7, "active": True, "frames": [NOW, OUTERMOST]}
WITHOUT_ITS_OUTER_END = {"os_thread_id": 7, "active": True, "frames": [NOW]}
OF_FREED_MEMORY = {
    "os_thread_id": 7,
    "active": True,
    "frames": [{**NOW, "name": "\0\x13wo\0"}, OUTERMOST],
}
LOST = {"os_thread_id": 7, "active": True, "frames": []}
IN_NATIVE_CODE = {"os_thread_id": 8, "active": True, "frames": []}


def answering(folder: Path, *answers: list[dict[str, object]] | None) -> str:
    """A py-spy that gives these answers one after another, an error for None."""
    for number, answer in enumerate(answers, 1):
        (folder / str(number)).write_text("" if answer is None else json.dumps(answer))
    return (
        f"#!/bin/sh\ncd {folder}\necho >> asked\nn=$(wc -l < asked)\n"
        "[ -s $n ] || { echo 'Error: Failed to copy PyCodeObject' >&2; exit 1; }\ncat $n\n"
    )


def asked(folder: Path) -> int:
    """How often it was asked."""
    return len((folder / "asked").read_text().splitlines())


@pytest.mark.parametrize(
    "answers",
    [
        (None, None, [WHOLE]),
        ([WITHOUT_ITS_OUTER_END], [WITHOUT_ITS_OUTER_END], [WHOLE]),
        ([OF_FREED_MEMORY], [OF_FREED_MEMORY], [WHOLE]),
        ([LOST], [WHOLE]),
        # native code may call Python in a thread of its own: believed the second time
        ([WHOLE, IN_NATIVE_CODE], [WHOLE, IN_NATIVE_CODE]),
    ],
)
def test_what_is_torn_is_read_again(
    program: StartProgram,
    tmp_path: Path,
    as_py_spy: Callable[[str], None],
    answers: tuple[list[dict[str, object]] | None, ...],
) -> None:
    pid = program("sleeping.py").pid
    as_py_spy(answering(tmp_path, *answers))
    thread, *_ = read_threads(pid, PATIENCE_S)
    assert [frame.name for frame in thread.frames] == ["works", "<module>"]
    assert asked(tmp_path) == len(answers)


def test_what_stays_torn_is_left_out_after_three_times(
    program: StartProgram, tmp_path: Path, as_py_spy: Callable[[str], None]
) -> None:
    pid = program("sleeping.py").pid
    as_py_spy(answering(tmp_path, *[[WITHOUT_ITS_OUTER_END]] * (MOST_DUMPS + 1)))
    with pytest.raises(PySpyFailed, match="torn"):
        read_threads(pid, PATIENCE_S)
    assert asked(tmp_path) == MOST_DUMPS


def test_all_attempts_share_one_time_limit(
    program: StartProgram, tmp_path: Path, as_py_spy: Callable[[str], None]
) -> None:
    pid = program("sleeping.py").pid
    as_py_spy(f"#!/bin/sh\necho >> {tmp_path}/asked\nsleep 0.4\nexit 1\n")
    with pytest.raises(Unseen):
        read_threads(pid, 0.5)
    assert asked(tmp_path) <= 2 < MOST_DUMPS


@pytest.mark.real
def test_nothing_is_paused(program: StartProgram) -> None:
    """A pause shows: a thread that sleeps is woken by it."""
    running = program("sleeping.py")
    until(lambda: (slept_s(running.pid) or 0.0) > 0.2, "it to sleep")
    before = switches(running.pid)
    for _ in range(5):
        read_threads(running.pid, PATIENCE_S)
    assert switches(running.pid) == before
    dump(running.pid, PATIENCE_S, "--native")
    assert switches(running.pid) != before


def switches(pid: int) -> list[str]:
    """How often its main thread gave up its processor, of its own will or not."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return [line for line in lines if "ctxt_switches" in line]


@real_when_asked_for
def test_threads_that_python_does_not_number_have_the_kernels_ids_all_the_same(
    program: StartProgram, tmp_path: Path, as_py_spy: Callable[[str], None]
) -> None:
    """As of Python 3.10, where py-spy knows no ids without pausing the process."""
    running = program("many_threads.py", "3")
    known = {one.thread_name: one.os_thread_id for one in read_threads(running.pid, PATIENCE_S)}
    told = json.loads(dump(running.pid, PATIENCE_S))
    as_py_spy(answering(tmp_path, [{**one, "os_thread_id": None} for one in told]))
    found = {one.thread_name: one.os_thread_id for one in read_threads(running.pid, PATIENCE_S)}
    tids = {int(task.name) for task in Path(f"/proc/{running.pid}/task").iterdir()}
    assert found == known
    assert set(found.values()) == tids


def why_no_stack(pid: int, time_limit_s: float = 20.0) -> str:
    """The reason of the one gap; there must be no stack."""
    stack, gaps = python_stacks(pid, 3, time_limit_s)
    assert stack is None
    (gap,) = gaps
    assert gap == Gap(f"stack of pid {pid}", 3, gap.why, "stack", gap.remedy)
    return gap.reason


def test_without_py_spy_the_gap_says_how_to_get_it(as_py_spy: Callable[[str], None]) -> None:
    as_py_spy("")
    why = why_no_stack(psutil.Process().ppid())
    assert why == "py-spy is not installed beside this Python nor on PATH; pip install py-spy"
    gone = subprocess.Popen(["/bin/true"])
    gone.wait()
    assert why_no_stack(gone.pid) == "the process has ended"


def test_a_hanging_py_spy_is_killed_with_all_that_it_started(
    as_py_spy: Callable[[str], None], tmp_path: Path
) -> None:
    as_py_spy(f"#!/bin/sh\nsleep 1000 & echo $! > {tmp_path}/pid; wait")
    assert why_no_stack(psutil.Process().pid, 1.0) == "py-spy gave no answer within 1 s"
    started = int((tmp_path / "pid").read_text())
    until(lambda: has_ended(started), "its child to end")


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (
            r"printf 'Error: No stacks\n\nCaused by:\n  0: out\n  1: the moon: full\n' >&2; exit 1",
            "py-spy: No stacks (the moon: full)",
        ),
        ("exit 7", "py-spy: it ended with 7"),
        (
            """echo '[{"threads": 3}]'""",
            "py-spy's answer is of another version than 0.4: Object missing required field `frames`"
            " - at `$[0]`; pip install -U py-spy",
        ),
    ],
)
def test_a_failure_is_told_in_one_line_with_its_innermost_cause(
    as_py_spy: Callable[[str], None], script: str, why: str
) -> None:
    as_py_spy(f"#!/bin/sh\n{script}")
    assert why_no_stack(psutil.Process().pid) == why


def test_a_program_that_cannot_be_started_says_why(as_py_spy: Callable[[str], None]) -> None:
    as_py_spy("#!/nowhere/at/all\n")
    assert "cannot be started (No such file or directory)" in why_no_stack(psutil.Process().pid)


@pytest.mark.real
def test_a_user_who_may_not_look_is_told_what_would_allow_it(program: StartProgram) -> None:
    """As root, the looker becomes another user; otherwise the kernel protects the target."""
    running = program("undumpable.py")
    looker = [sys.executable, str(PROGRAMS / "probing_unprivileged.py"), str(running.pid)]
    output = subprocess.run(looker, capture_output=True, check=True, timeout=120)
    answer = msgspec.json.decode(output.stdout)
    remedies = {gap["what"]: gap["remedy"] for gap in answer["gaps"]}
    assert remedies.keys() == {
        f"stack of pid {running.pid}",
        f"system calls of pid {running.pid}",
        f"bytes read and written by pid {running.pid}",
    }
    assert all("run as" in remedy for remedy in remedies.values())
    assert answer["sample"]["kernel"]["state"] == "S"
    assert answer["sample"]["kernel"]["threads"][0].get("syscall") is None
    assert answer["io"] is None
    assert "another user" in answer["environment"]["why"]
