"""Which expressions ask for the rank, by whatever name; and which only look like it."""

from __future__ import annotations

import ast

import pytest

from lightning_hangcheck.look.rank_tests import RankTests
from lightning_hangcheck.look.source import Parsed


def _last_test(source: str) -> tuple[RankTests, ast.expr]:
    tree = ast.parse(source)
    tests = [node.test for node in ast.walk(tree) if isinstance(node, ast.If)]
    return RankTests(tree), tests[-1]


ASKING = [
    "if rank == 0: pass",
    "if args.local_rank in (-1, 0): pass",
    "if self.global_rank: pass",
    "if trainer.is_global_zero: pass",
    "if accelerator.is_main_process: pass",
    "if state.is_world_process_zero and due: pass",
    "if dist.get_rank() != 0: pass",
    'if int(os.environ["RANK"]) == 0: pass',
    'if os.environ.get("SLURM_PROCID") == "0": pass',
    'if os.getenv("LOCAL_RANK", "0") == "0": pass',
    "primary = dist.get_rank() == 0\nif primary: pass",
    "from torch.distributed import get_rank as whoami\nif whoami() == 0: pass",
    "ask = dist.get_rank\nnumber = ask()\nif number == 0: pass",
    'me = int(os.environ["RANK"])\nboss = me == 0\nif boss and step > 3: pass',
    "me, size = dist.get_rank(), dist.get_world_size()\nif me % 2: pass",
    "class A:\n def f(self):\n  self.writes = rank == 0\n def g(self):\n  if self.writes: pass",
    "def writes():\n return dist.get_rank() == 0\nif writes(): pass",
    "def log(verbose):\n if verbose: pass\nlog(verbose=trainer.is_global_zero)",
    "def log(text, verbose):\n if verbose: pass\nlog('a', rank == 0)",
    "if jax.process_index() == 0: pass",
]
NOT_ASKING = [
    "if lora_rank > 8: pass",
    "if rank_loss > best: pass",
    "if low_rank: pass",
    "if torch.linalg.matrix_rank(a) < 4: pass",
    "if ranking > 3: pass",
    "if world_size > 1: pass",
    "rank = 16\nif rank > 8: pass",
    "def adapt(layer, rank=8):\n if rank > 4: pass\nadapt(layer, 16)",
    "batches = 40 if rank == 0 else 30\nif step < batches: pass",
    "shard = data[rank]\nif shard: pass",
    "if loss > limit: pass",
]


@pytest.mark.parametrize("source", ASKING)
def test_a_test_of_the_rank_is_known_by_any_name(source: str) -> None:
    tests, test = _last_test(source)
    assert tests.asks(test)


@pytest.mark.parametrize("source", NOT_ASKING)
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
        ("rank > 0", False),
        ("not is_main_process", False),
        ("is_main_process and step % 10 == 0", True),
        ("primary", True),
        ("rank < 2", None),
        ("loss > 3", None),
    ],
)
def test_it_is_known_whether_a_test_holds_for_one_rank(
    test: str, holds_for_one: bool | None
) -> None:
    tests, expression = _last_test(f"primary = rank == 0\nif {test}: pass")
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
        (27, {"condition": "", "branch_tests": ("else of if trainer.is_global_zero",)}),
        # lines that ask for the end of something; a loop that only waits is no work
        (21, {"awaits": True, "loops": ()}),
        (23, {"awaits": True}),
        (14, {"awaits": False, "loops": ((11, 18),)}),
        (16, {"awaits": False}),
    ],
)
def test_what_stands_around_a_line_is_told(line: int, told: dict[str, object]) -> None:
    note = Parsed(ast.parse(SOURCE)).note("train.py", line)
    assert {name: getattr(note, name) for name in told} == told


def test_names_that_lead_to_each_other_are_followed_once() -> None:
    """As in a file of thousands of lines, where most names are made of most others."""
    names = [f"name_{number}" for number in range(40)]
    lines = [f"{one} = {' + '.join(names)}" for one in names]
    tree = ast.parse("\n".join([*lines, "if name_0 and not name_1:\n    pass"]))
    (test,) = [node.test for node in ast.walk(tree) if isinstance(node, ast.If)]
    assert not RankTests(tree).asks(test)
    assert RankTests(tree).of_one(test) is None
