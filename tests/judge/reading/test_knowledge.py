"""The data files that contributors extend: whole, and without dead ends."""

from __future__ import annotations

import ast
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import lightning_hangcheck
from lightning_hangcheck.judge.frames import meanings
from lightning_hangcheck.judge.knowledge import JobKind, causes_file, frames_file
from lightning_hangcheck.judge.remedies import placeholders

if TYPE_CHECKING:
    from lightning_hangcheck.judge.knowledge import FrameRule
    from lightning_hangcheck.model.slugs import Cause

CAUSES = sorted(causes_file().cause)
REMEDIES = [remedy for cause in CAUSES for remedy in causes_file().cause[cause].remedies]
OF_OURS = [one for one in frames_file().frame if one.file.startswith("lightning_hangcheck/")]
FILLED_IN = {"rank", "pid", "place", "function", "test", "unused"}
OF_SEVERAL_RANKS = {"collective_mismatch", "rank_diverged", "uneven_work"}
ASPECTS = {
    "logger_init": {"own", "wandb"},
    "process_dead": {
        *("killed", "aborted", "raised", "gpu_memory", "silent", "left", "outside"),
        *("child_killed", "child_raised"),
    },
}
"""All aspects of causes for which no remedy helps against every one."""


def test_every_remedy_can_be_filled_in_and_read_on() -> None:
    assert REMEDIES
    unknown = [one.text for one in REMEDIES if placeholders(one.text) - FILLED_IN]
    assert unknown == []
    assert [one.text for one in REMEDIES if not one.see.startswith("https://")] == []


def test_no_finding_is_without_a_remedy() -> None:
    """Whatever its aspect, one remedy needs no more than the rank and its process."""
    found = [
        (cause, kind, aspect)
        for cause, kind in product(CAUSES, get_args(JobKind))
        if not (cause in OF_SEVERAL_RANKS and kind == "one process")
        for aspect in ASPECTS.get(cause, {None, "any other", *aspects_named(cause)})
    ]
    # two threads of a rank are told apart by the user's lines that called: these are known
    of_a_line = [("collective_mismatch", "several ranks", "threads")]
    assert [one for one in found if not has_remedy(*one)] == of_a_line


def aspects_named(cause: Cause) -> set[str | None]:
    remedies = causes_file().cause[cause].remedies
    return {aspect for one in remedies for aspect in (one.aspect, *one.other_than)}


def has_remedy(cause: Cause, kind: JobKind, aspect: str | None) -> bool:
    return any(
        placeholders(one.text + one.command) <= {"rank", "pid"}
        for one in causes_file().cause[cause].remedies
        if one.aspect in (None, aspect)
        and one.needs in (None, kind)
        and aspect not in one.other_than
    )


def test_every_frame_rule_matches_what_it_names_and_nothing_else() -> None:
    assert [one for one in frames_file().frame if not matches_what_it_names(one)] == []


def matches_what_it_names(rule: FrameRule) -> bool:
    first = rule.functions.split("|")[0]
    file = f"{rule.file}{'x.py' if rule.file.endswith('/') else ''}"
    path = f"/venv/lib/python3.11/site-packages/{file}"
    elsewhere = meanings("no_such_function", path), meanings(first, f"/home/ada/my_{path[-9:]}")
    return rule in meanings(f"Some.{first}", path) and not any(rule in one for one in elsewhere)


def test_frame_rules_of_our_own_code_name_functions_that_are_there() -> None:
    """Whoever renames or moves one changes frames.toml with it, or the wait is no longer known."""
    assert OF_OURS
    for rule in OF_OURS:
        source = Path(lightning_hangcheck.__file__).parent.parent / rule.file
        defined = {
            node.name
            for node in ast.walk(ast.parse(source.read_text()))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        assert set(rule.functions.split("|")) <= defined, rule
