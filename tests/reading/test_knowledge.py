"""The data files that contributors extend: whole, and without dead ends."""

from __future__ import annotations

import ast
import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import pytest

import lightning_hangcheck
from lightning_hangcheck.diagnosis.rules.engine import RULES
from lightning_hangcheck.diagnosis.verdict.remedies import PLACEHOLDERS, placeholders
from lightning_hangcheck.reading.knowledge.frames import meanings
from lightning_hangcheck.reading.knowledge.loading import JobKind, causes_file, frames_file

if TYPE_CHECKING:
    from lightning_hangcheck.model.naming.slugs import Cause
    from lightning_hangcheck.reading.knowledge.loading import FrameRule, RemedyKnowledge

CAUSES = sorted(causes_file().cause)
REMEDIES = [
    pytest.param(remedy, id=f"{cause}-{number}")
    for cause in CAUSES
    for number, remedy in enumerate(causes_file().cause[cause].remedies)
]
OF_OURS = [one for one in frames_file().frame if one.file.startswith("lightning_hangcheck/")]
OF_SEVERAL_RANKS = {"collective_mismatch", "rank_diverged", "uneven_work"}
ASPECTS = {
    "rendezvous": {"peers", "store", "nodes", "address"},
    "spinning": {"cpu", "gpu"},
    "rank_stalled": {
        *(None, "child", "forked", "worker", "full_pipe", "input", "store", "peer"),
        *("exit_thread", "exit_queue", "own_pool"),
    },
    "thread_deadlock": {None, "awaited", "across_ranks"},
    "logger_init": {"own", "wandb"},
    "dataloader_worker": {None, "forked", "child"},
    "file_lock": {"held", "stale"},
    "filesystem_wait": {"file", "fifo"},
    "checkpoint_io": {"file", "fifo"},
    "network_wait": {"node", "remote", "store"},
    "rank_diverged": {"made", "left_out", "messages", "asked_to_end"},
    "collective_mismatch": {None, "messages", "tags"},
    "unknown": {None, "node"},
    "slow_progress": {"silent", "loader", "forward", "waiting"},
    "process_dead": {
        *("killed", "raised", "gpu_memory", "silent", "left", "outside"),
        *("child_killed", "child_raised"),
    },
}


def test_every_rules_cause_is_explained() -> None:
    assert {rule.cause for rule in RULES} == set(CAUSES)


@pytest.mark.parametrize("remedy", REMEDIES)
def test_a_remedy_can_be_filled_in_and_read_on(remedy: RemedyKnowledge) -> None:
    assert placeholders(remedy.text) <= set(PLACEHOLDERS)
    assert remedy.see.startswith("https://")


@pytest.mark.parametrize("kind", get_args(JobKind))
@pytest.mark.parametrize("cause", CAUSES)
def test_no_finding_is_without_a_remedy(cause: Cause, kind: JobKind) -> None:
    """For each aspect one remedy needs no more than the rank and its process."""
    remedies = causes_file().cause[cause].remedies
    if cause in OF_SEVERAL_RANKS and kind == "one process":
        assert all(one.needs == "several ranks" for one in remedies)
        return
    for aspect in ASPECTS.get(cause, {None}):
        fitting = [
            one
            for one in remedies
            if one.aspect in (None, aspect)
            and one.needs in (None, kind)
            and aspect not in one.other_than
        ]
        assert any(placeholders(one.text) <= {"rank", "pid"} for one in fitting)
    assert {one.aspect for one in remedies} - {None} <= ASPECTS.get(cause, set())


@pytest.mark.parametrize("rule", frames_file().frame, ids=lambda rule: rule.file)
def test_a_frame_rule_matches_what_it_names(rule: FrameRule) -> None:
    file, functions = rule.file, rule.functions
    re.compile(functions)
    path = f"/venv/lib/python3.11/site-packages/{file}{'x.py' if file.endswith('/') else ''}"
    assert rule in meanings(f"Some.{functions.split('|')[0]}", path)
    assert rule not in meanings("no_such_function", path)
    assert rule not in meanings(functions.split("|")[0], f"/home/ada/my_{path[-9:]}")


@pytest.mark.parametrize("rule", OF_OURS, ids=lambda rule: rule.file)
def test_a_frame_rule_of_our_own_code_names_functions_that_are_there(rule: FrameRule) -> None:
    """Whoever renames or moves one changes frames.toml with it, or the wait is no longer known."""
    source = Path(lightning_hangcheck.__file__).parent.parent / rule.file
    defined = {
        node.name
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert set(rule.functions.split("|")) <= defined


def test_some_frame_rule_names_our_own_code() -> None:
    assert OF_OURS


def test_every_alias_is_spelled_out() -> None:
    files = {rule.file for rule in frames_file().frame}
    assert not any(file.startswith("@") for file in files)
    assert "pytorch_lightning/loops/fit_loop.py" in files
    assert "lightning/pytorch/loops/fit_loop.py" in files


@pytest.mark.parametrize("name", causes_file().signals)
def test_signals_have_real_names(name: str) -> None:
    assert signal.Signals[name]
