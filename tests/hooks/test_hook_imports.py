"""What a user attaches loads nothing heavy before it is used, and says so when it is missing."""

from __future__ import annotations

from pkgutil import resolve_name

from long_tests import real_when_asked_for
from processes import run_python

from lightning_hangcheck.hooks.zero_code.loops import WATCHED

HEAVY = "torch lightning pytorch_lightning wandb transformers"


def test_naming_what_it_has_imports_none_of_the_guests() -> None:
    said = run_python(
        "-c",
        "import sys, lightning_hangcheck as hc\n"
        "for name in (*hc.__all__, 'transformers'): getattr(hc, name)\n"
        f"print([heavy for heavy in {HEAVY!r}.split() if heavy in sys.modules])",
    )

    assert said.stdout == "[]\n", said.stderr


def test_a_star_import_leaves_the_real_transformers_alone() -> None:
    said = run_python("-c", "from lightning_hangcheck import *\nprint('transformers' in globals())")

    assert said.stdout == "False\n", said.stderr


def test_missing_lightning_is_one_sentence_with_the_way_out() -> None:
    said = run_python(
        "-c",
        "import sys, lightning_hangcheck as hc\n"
        "for name in ('lightning', 'pytorch_lightning'):\n"
        "    sys.modules[name] = None\n"
        "hc.HangCheck()\n",
    )

    assert "BadUsage: Lightning is not installed; pip install lightning" in said.stderr


def test_each_function_that_is_named_for_a_framework_is_there() -> None:
    """Else that framework would silently go unwatched."""
    named = [ours for _, ours in WATCHED if isinstance(ours, str)]
    assert named
    assert all(callable(resolve_name(f"lightning_hangcheck.hooks.{ours}")) for ours in named)


TABLE = """
import importlib
from lightning_hangcheck.hooks.zero_code.loops import SECTIONS
from lightning_hangcheck.hooks.zero_code.wrapping import modules_of
for named, function, *_ in SECTIONS:
    for name in modules_of(named):
        try:
            found = importlib.import_module(name)
        except ImportError:
            print("no", name.partition(".")[0])
            continue
        for part in function.split("."):
            found = getattr(found, part, None)
        if not callable(found):
            print(name, "has no", function)
"""


@real_when_asked_for
def test_each_call_that_the_table_makes_a_section_is_there() -> None:
    """In the versions that are installed; as above."""
    said = run_python("-c", TABLE, limit_s=500)  # it imports all frameworks
    assert said.returncode == 0, said.stderr
    assert set(said.stdout.splitlines()) <= {"no datasets"}
