"""What the source tells around a line: tests of the rank, loops, calls ahead, and locks."""

from __future__ import annotations

import ast
import os
import time
from typing import TYPE_CHECKING

import pytest
from cases import STDLIB

from lightning_hangcheck.look.source import CallsAhead, Parsed, Sources, code_notes
from lightning_hangcheck.look.stacks import Variables
from lightning_hangcheck.look.syntax import RankTests
from lightning_hangcheck.look.threads import locks_at, with_bystanders, with_relations
from lightning_hangcheck.model.evidence import (
    Frame,
    ProcessStack,
    ProcessState,
    ThreadStack,
    ThreadState,
    WaitTarget,
)

if TYPE_CHECKING:
    from pathlib import Path


def _last_test(source: str) -> tuple[RankTests, ast.expr]:
    tree = ast.parse(source)
    tests = [node.test for node in ast.walk(tree) if isinstance(node, ast.If)]
    return RankTests(tree, under=True), tests[-1]


@pytest.mark.parametrize(
    "source",
    [
        "if rank == 0: pass",
        "if trainer.is_global_zero: pass",
        "if dist.get_rank() != 0: pass",
        'if os.environ.get("SLURM_PROCID") == "0": pass',
        "from torch.distributed import get_rank as whoami\nif whoami() == 0: pass",
        "ask = dist.get_rank\nnumber = ask()\nif number == 0: pass",
        'me = int(os.environ["RANK"])\nboss = me == 0\nif boss and step > 3: pass',
        "me, size = dist.get_rank(), dist.get_world_size()\nif me % 2: pass",
        "class A:\n def f(self):\n  self.writes = rank == 0\n def g(self):\n  if self.writes: pass",
        "def writes():\n return dist.get_rank() == 0\nif writes(): pass",
        "def log(verbose):\n if verbose: pass\nlog(verbose=trainer.is_global_zero)",
        'role = "chief" if rank == 0 else "worker"\nif role == "chief": pass',
        "class Config:\n writes: bool = False\nc = Config(writes=rank == 0)\nif c.writes: pass",
        "def log(*, verbose):\n if verbose: pass\nt = partial(log, verbose=rank == 0)",
        "board = None\nif rank == 0: board = make()\nif board is not None: pass",
        "if flag: open(path).close()\nif rank == 0: makers[0]()",
    ],
)
def test_a_test_of_the_rank_is_known_by_any_name(source: str) -> None:
    tests, test = _last_test(source)
    assert tests.asks(test)


@pytest.mark.parametrize(
    "source",
    [
        "if lora_rank > 8: pass",
        "if torch.linalg.matrix_rank(a) < 4: pass",
        "rank = 16\nif rank > 8: pass",
        "def adapt(layer, rank=8):\n if rank > 4: pass\nadapt(layer, 16)",
        "batches = 40 if rank == 0 else 30\nif step < batches: pass",
        'ddp = int(os.environ.get("RANK", -1)) != -1\nif ddp: pass',
        'if "RANK" in os.environ: pass',
        "if rank is not None and args.local_rank >= 0: pass",
        "batches = 40\nif rank == 0: batches = 30\nif step < batches: pass",
        "stop = False\nif rank == 0: stop = True\nstop = agreed(stop)\nif stop: pass",
    ],
)
def test_what_only_looks_like_it_is_none(source: str) -> None:
    tests, test = _last_test(source)
    assert not tests.asks(test)


@pytest.mark.parametrize(
    ("test", "holds_for_one"),
    [
        ("rank == 0", True),
        ("not rank", True),
        ("rank", False),
        ("rank != 0", False),
        ("is_main_process and step % 10 == 0", True),
        ("rank < 2", None),
        ("loss > 3", None),
    ],
)
def test_it_is_known_whether_a_test_holds_for_one_rank(
    test: str, holds_for_one: bool | None
) -> None:
    tests, expression = _last_test(f"if {test}: pass")
    assert tests.of_one(expression) is holds_for_one


SOURCE = """\
def log(value):
    if rank == 0:
        return
    reduce(value)

@rank_zero_only
def save():
    barrier()

def train(batches):
    for batch in batches:
        if rank == 1 and batch > 5:
            continue
        all_reduce(batch)
        if due:
            evaluate()
        else:
            rest()
    if rank == 0: barrier()
    for work in started:
        work.wait()
    while not work.is_completed():
        pass
    if trainer.is_global_zero:
        a()
    else:
        b()
    with timed():
        barrier()
    rank == 0 and save()
    match rank:
        case 0:
            a()
        case _:
            b()
    hooks = []
    if rank == 0:
        hooks.append(save)
    for hook in hooks:
        hook()
"""


@pytest.mark.parametrize(
    ("line", "told"),
    [
        # the rank that a test leads away is told from those that stay
        (4, {"condition": "", "skipped_under": "rank == 0"}),
        (8, {"condition": "@rank_zero_only"}),
        (14, {"condition": "", "skipped_under": "rank == 1 and batch > 5"}),
        (14, {"branch_tests": ("if rank == 1 and batch > 5: continue",)}),
        # blocks that a test may pass by
        (16, {"branches": ((14, 18), (16, 16))}),
        (18, {"branches": ((14, 18), (18, 18))}),
        # a test on the line itself, whose block is there too
        (19, {"condition": "rank == 0"}),
        # the other branch of a test that holds for one rank is where the others go
        (25, {"condition": "trainer.is_global_zero"}),
        (27, {"condition": "not trainer.is_global_zero", "condition_of_most": True}),
        (27, {"branch_tests": ("else of if trainer.is_global_zero",)}),
        # lines that ask for the end of something; a loop that only waits is no work
        (21, {"awaits": True, "loops": ()}),
        (23, {"awaits": True}),
        (14, {"awaits": False, "loops": ((11, 18),)}),
        (16, {"awaits": False}),
        # what leaves a context stands at the line where that begins
        (28, {"with_until": 29}),
        (29, {"with_until": 0}),
        # what stands before a call in one expression, cases, and a list that one rank made longer
        (30, {"condition": "rank == 0"}),
        (33, {"condition": "rank == 0", "branch_tests": ("case 0",)}),
        (35, {"condition": "not rank == 0", "condition_of_most": True}),
        (40, {"condition": "rank == 0", "condition_of_most": False}),
    ],
)
def test_what_stands_around_a_line_is_told(line: int, told: dict[str, object]) -> None:
    note = Parsed(ast.parse(SOURCE)).note("train.py", line)
    assert {name: getattr(note, name) for name in told} == told


def test_a_test_of_the_rank_may_be_in_another_file_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "roles.py").write_text("def reports(): return get_rank() == 0\n")
    program = tmp_path / "train.py"
    program.write_text("from tools.roles import reports\nif reports():\n    save()\n")
    note = Sources("", time.time() + 1).note(str(program), 3)
    assert note.condition == "reports()"


def test_files_that_are_not_what_runs_give_no_note(tmp_path: Path) -> None:
    good, broken, newer = (tmp_path / name for name in ("good.py", "broken.py", "newer.py"))
    for file in (good, newer):
        file.write_text(SOURCE)
    broken.write_text("if rank ==")
    now = time.time()
    os.utime(newer, (now + 60, now + 60))
    files = [str(one) for one in (good, broken, newer, tmp_path / "absent.py")]
    frames = [
        Frame("train", file, 19) for file in (*files, "<string>", "/usr/lib/python3.11/os.py")
    ]
    (note,) = code_notes(frames, now + 1, 5.0)
    assert (note.file, note.condition) == (str(good), "rank == 0")


@pytest.mark.parametrize("kind", ["fifo", "endless"])
def test_what_is_no_file_is_left_at_once(kind: str, tmp_path: Path) -> None:
    """A program may name any path as its source."""
    path = tmp_path / "source.py"
    os.mkfifo(path) if kind == "fifo" else path.symlink_to("/dev/zero")
    assert code_notes([Frame("f", str(path), 1)], time.time() + 1, 20.0) == ()


STEPS = """\
def train(loader, r):
    for epoch in range(2):
        for batch in loader:
            warm(batch)
            with autocast():
                loss = net(batch)
                loss.backward()
            if r == 1:
                publish(loss)
            else:
                wait(loss)
        if epoch:
            validate()
    save()

def train_step(batch):
    loss = net(batch)
    loss.backward()
    clip()

def main():
    load()
    for batch in loader:
        fetch(batch)
        loss = train_step(batch)
        sync(loss)
    export()
"""


def test_what_comes_in_a_pass_after_backward_is_known() -> None:
    tree = ast.parse(STEPS)
    after = [line for line in range(2, 29) if Parsed(tree).note("train.py", line).after_backward]
    assert after == [8, 9, 10, 11, 12, 13, 19, 26]


IMPORTS = """
import os, queue, subprocess, time
import torch
import torch.distributed as dist
from torch.distributed import all_gather_object as gather_all
from project.sync import publish
"""


def read(source: str) -> tuple[CallsAhead, int]:
    """A thread sleeps in a call of ``work``, and does this then; or all of it, where HERE is."""
    text = source if "HERE" in source else f"def work(call):\n    sleep(9)  # HERE\n    {source}"
    text = IMPORTS + text.replace("sleep(9)", "time.sleep(9)")
    line = next(number for number, one in enumerate(text.splitlines(), 1) if "HERE" in one)
    return CallsAhead(ast.parse(text)), line


@pytest.mark.parametrize(
    ("source", "calls_collectives"),
    [
        ("dist.barrier()", True),
        ("gather_all(found, None)", True),
        ("fabric.barrier('saved')", True),
        ("meet()\ndef meet():\n    dist.barrier()", True),
        ("self.meet()\nclass Saver:\n    def meet(self):\n        dist.barrier()", True),
        ("while True:\n    dist.broadcast(tensor, 0)\n    sleep(9)  # HERE", True),
        ("log.info('%s', os.getpid())", False),
        ("note()\ndef note():\n    note()", False),
        ("def work():\n    dist.barrier()\n    sleep(9)  # HERE\n    torch.ones(3)", False),
        ("pass\ndef other():\n    dist.barrier()", False),
        ("call()", None),
        ("publish(results)", None),
        ("channel.send(weights)", None),
    ],
)
def test_what_follows_is_read_with_the_files_own_functions(
    source: str, calls_collectives: bool | None
) -> None:
    calls, line = read(source)
    assert calls.collectives(line) is calls_collectives


def test_a_program_is_not_followed_to_its_end() -> None:
    """A hundred functions, each of which calls the next one."""
    steps = "".join(f"\ndef step_{n}():\n    step_{n + 1}()" for n in range(100))
    calls, line = read(f"step_0(){steps}\ndef step_100():\n    dist.barrier()")
    assert calls.collectives(line) is None


@pytest.mark.parametrize("begins", ["_bootstrap", "backward"])
def test_who_called_a_function_in_a_thread_of_its_own_waits_for_its_return(
    begins: str, tmp_path: Path
) -> None:
    """As autograd does, which is no Python; of a thread of Python's nobody waits for that."""
    (tmp_path / "train.py").write_text("import time\ndef backward():\n    time.sleep(1)\n")
    outer = [Frame("_bootstrap", f"{STDLIB}/threading.py", 9)] if begins == "_bootstrap" else []
    frames = (*outer, Frame("backward", f"{tmp_path}/train.py", 3))
    threads = ThreadStack(tid=1), ThreadStack(tid=2, frames=frames)
    stack = ProcessStack(pid=1, source="py-spy", threads=threads)
    _, thread = with_bystanders(stack, Sources("", time.time() + 1)).threads
    assert thread.bystander is (begins == "_bootstrap")


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("print(os.getpid())", False),
        ("log.write('alive')\nlog = open('log')", False),
        ("self.seen.append(1)\ndef start(self):\n    self.seen = []", False),
        ("pipe.write('ready')", None),
        ("buffer.extend([1])\nbuffer = Replay()", None),
        ("lock.release()", True),
        ("jobs.get()", True),
        ("all.wait()\nall = Barrier(2)", True),
        ("with lock:\n    sleep(9)  # HERE", True),
        ("os.write(waker, b'.')", True),
        ("end()\ndef end():\n    done.set()", True),
        ("tool.kill()", True),
        # also by what a child or a pipe is given, a command, or a generator that goes on
        ("print('go', file=engine.stdin)", True),
        ("json.dump(move, engine.stdin)\nimport json", True),
        ("print('go', file=pipe)", None),
        ("print('lost', file=sys.stderr)", False),
        ("subprocess.run(['kill', str(tool.pid)])", True),
        ("os.system('docker restart carla')", True),
        ("subprocess.run(['nvidia-smi'])", False),
        ("subprocess.run(['bash', 'reset_sim.sh'])", None),
        ("subprocess.run(command)", None),
        ("next(job)", None),
        ("def work():\n    fcntl.flock(file, 2)\n    sleep(9)  # HERE", True),
        # the last reference to a locked file releases it
        ("claims.pop(name)\nclaims = {}", False),
        ("claims.pop(name)\nclaims = {}\ndef claim():\n    fcntl.flock(file, 2)", True),
        ("self.claim = None\ndef claim():\n    fcntl.flock(file, 2)", True),
        ("call()", None),
        ("publish(results)", None),
    ],
)
def test_a_thread_ends_anothers_wait_by_giving_back_a_lock_or_bringing_news(
    source: str, told: bool | None
) -> None:
    calls, line = read(source)
    assert calls.waking(line) is told


@pytest.mark.parametrize(("defined", "told"), [("flush", None), ("close_later", False)])
def test_a_method_that_an_imported_file_defines_is_no_everyday_objects(
    defined: str, told: bool | None
) -> None:
    other = Parsed(ast.parse(f"class Mirror:\n    def {defined}(self):\n        pass"))
    text = (
        "from mirror import Mirror\nimport time\ndef work():\n    time.sleep(9)\n    mirror.flush()"
    )
    calls = CallsAhead(ast.parse(text), lambda module, _: other if module == "mirror" else None)
    assert calls.waking(3) is told


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("threading.Timer(9, meet)\ndef meet():\n    dist.barrier()", True),
        ("plan.enter(9, 1, partial(meet, 1))\ndef meet(n):\n    dist.barrier()", True),
        ("threading.Timer(9, note)\ndef note():\n    log.info('up')", False),
        ("threading.Timer(9, call)", None),
        ("dist.barrier()", False),
    ],
)
def test_what_a_timer_will_call_is_read_in_the_file_that_makes_it(
    source: str, told: bool | None
) -> None:
    assert CallsAhead(ast.parse(IMPORTS + source)).timed is told


@pytest.mark.parametrize(("made", "told"), [("Lock", False), ("Condition", True)])
def test_leaving_a_lock_ends_no_wait_where_all_wait_to_be_notified(made: str, told: bool) -> None:
    calls, line = read(f"kept = threading.{made}()\nwith kept:\n    sleep(9)  # HERE")
    assert calls.waking(line)
    assert calls.waking(line, lock_wanted=False) is told


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("while not exists(mark):\n    sleep(9)  # HERE\ncall()", (True, None)),
        ("while not exists(mark):\n    sleep(9)  # HERE\nlog.info('done')", (True, False)),
        ("while True:\n    sleep(9)  # HERE\n    call()", (False, False)),
        ("while not stop.is_set():\n    sleep(9)  # HERE\ncall()", (False, None)),
        (
            "while True:\n    sleep(9)  # HERE\n    if exists(mark):\n        return call()",
            (True, None),
        ),
        ("for _ in range(9):\n    sleep(9)  # HERE\ndist.barrier()", (True, True)),
        ("call()", (None, None)),
    ],
)
def test_what_a_thread_calls_once_its_loop_has_ended_was_not_called_in_each_pass(
    source: str, told: tuple[bool | None, bool | None]
) -> None:
    calls, line = read(source)
    assert calls.behind_loop(line) == told


@pytest.mark.parametrize("line", ["with a, b: pass", "with open(path): pass", "work()"])
def test_a_line_that_takes_several_locks_or_one_without_a_name_tells_none(line: str) -> None:
    assert locks_at(ast.parse(line), Frame("<module>", "/demo/train.py", 1))[0] == ()


# Which thread is joined, and who is inside of the lock that another takes.

LOCKING = """
def want():
    with lock:
        pass
def hold():
    with lock:
        work()
def wait():
    with lock:
        lock.release()
        work()
class Store:
    def want(self):
        with self.lock:
            pass
    def hold(self):
        with self.lock:
            work()
def hold_given(lock):
    with lock:
        work()
"""
CONDITION_WAIT = Frame("Condition.wait", f"{STDLIB}/threading.py", 327)
EVENT_WAIT = Frame("Event.wait", f"{STDLIB}/threading.py", 629)
ENTERS = Frame("Condition.__enter__", f"{STDLIB}/threading.py", 272)
FUTURE = Frame("Future.result", f"{STDLIB}/concurrent/futures/_base.py", 451)
IN_EVENT = (EVENT_WAIT, CONDITION_WAIT)
LINES = {"want": 3, "hold": 7, "wait": 11, "hold_given": 21}
METHODS = {"want": 14, "hold": 18}


@pytest.fixture
def source(tmp_path: Path) -> str:
    """A file that was there before this process."""
    file = tmp_path / "train.py"
    file.write_text(LOCKING)
    os.utime(file, (1e9, 1e9))
    return str(file)


def call(source: str, name: str) -> Frame:
    """A call of a function of the source, or of a method where its class is named."""
    owner, _, function = name.rpartition(".")
    return Frame(name, source, (METHODS if owner else LINES)[function])


def thread(source: str, tid: int, *names: str, within: tuple[Frame, ...] = ()) -> ThreadStack:
    """A thread in these calls, which then called something else."""
    frames = (*(call(source, name) for name in names), *within)
    return ThreadStack(tid=tid, frames=frames, takes_lock=names[-1].endswith("want"))


def holder(*threads: ThreadStack) -> int | None:
    """Who has the lock that the first thread takes; of none the variables can be read."""
    stack = ProcessStack(pid=os.getpid(), source="py-spy", threads=threads)
    waits = ThreadState(
        tid=threads[0].tid or 0,
        state="S",
        cpu_s=0.0,
        waits_for=(WaitTarget(call="futex", kind="futex"),),
    )
    kernel = ProcessState(
        pid=os.getpid(), parent_pid=1, state="S", started_ticks=1, cpu_s=0.0, threads=(waits,)
    )
    first, *_ = with_relations(
        stack, kernel, Sources.of(os.getpid()), Variables(os.getpid(), 0.0)
    ).threads
    return first.tid if first.holds_lock else first.held_by


def test_a_lock_of_the_file_is_held_by_who_is_inside_of_it(source: str) -> None:
    waits, other = thread(source, 1, "want"), thread(source, 3, "want")
    assert holder(waits, thread(source, 2, "hold"), other) == 2
    assert holder(waits, other) is None


def test_a_lock_of_the_same_name_and_code_that_a_block_only_makes_are_told_apart(
    source: str,
) -> None:
    """A generator that was written in a block runs where somebody asks for its values."""
    waits, made = thread(source, 1, "want"), Frame("<genexpr>", source, LINES["hold"])
    assert holder(waits, thread(source, 2, "hold_given")) is None
    assert holder(waits, ThreadStack(tid=2, frames=(made,))) is None


def test_an_object_whose_place_is_not_known_may_be_another(source: str) -> None:
    waits, holds = thread(source, 1, "Store.want"), thread(source, 2, "Store.hold")
    assert holder(waits, holds) is None


@pytest.mark.parametrize(
    ("within", "known"),
    [((), True), ((CONDITION_WAIT,), False), (IN_EVENT, True), ((FUTURE, CONDITION_WAIT), True)],
)
def test_who_waits_for_news_behind_a_lock_may_have_given_it_back(
    source: str, within: tuple[Frame, ...], known: bool
) -> None:
    """A condition may be made of any lock; an event or a future has one of its own."""
    holds = thread(source, 2, "hold", within=within)
    assert holder(thread(source, 1, "want"), holds) == (2 if known else None)
    assert holder(thread(source, 1, "want", within=(ENTERS,)), holds) == (2 if known else None)


def test_who_may_not_have_it_is_not_known_to(source: str) -> None:
    """One of several was seen a moment later; one lets go in between."""
    waits, holds = thread(source, 1, "want"), thread(source, 2, "hold")
    assert holder(waits, holds, thread(source, 3, "hold")) is None
    assert holder(waits, thread(source, 2, "wait")) is None
    assert holder(waits, thread(source, 2, "hold", "wait")) is None


def test_a_file_that_changed_since_is_not_what_runs(source: str) -> None:
    os.utime(source)
    assert holder(thread(source, 1, "want"), thread(source, 2, "hold")) is None


def test_the_holder_is_found_however_deep_the_calls_within_are(source: str) -> None:
    """A handler may be interrupted by its own signal again and again."""
    interrupted = ("want",) * 120
    assert holder(thread(source, 1, "hold", *interrupted)) == 1


@pytest.mark.parametrize(
    ("line", "limited"),
    [
        ("dist.barrier(timeout=minute)", True),
        ("dist.barrier(timeout=None)", False),
        ("work.wait(timedelta(seconds=9))", True),
        ("dist.all_reduce(loss, async_op=True).wait(minute)", True),
        ("work.wait()", False),
        ("store.wait(['ready'])", False),
        ("futures.wait(saves)", False),
        ("wait(saves)", False),
        ("dist.barrier(group)", False),
    ],
)
def test_a_call_is_given_a_time_limit_by_name_or_as_the_first_argument_of_a_wait(
    line: str, limited: bool
) -> None:
    assert Parsed(ast.parse(line)).note("train.py", 1).limited is limited
