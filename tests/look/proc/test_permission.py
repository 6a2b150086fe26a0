"""Why a process cannot be read, and the way out, for each setting of a machine."""

from __future__ import annotations

import os
from typing import Any

import pytest

from lightning_hangcheck.look.proc import Access, explain, why_filtered, why_refused
from lightning_hangcheck.model.evidence import Gap


def access(**changes: Any) -> Access:
    facts = {"own_user": 1000, "their_user": 1000, "capable": False, "yama_scope": 0} | changes
    return Access(**facts)


@pytest.mark.parametrize(
    ("facts", "why", "remedy"),
    [
        (access(their_user=7), "belongs to user id 7, we are user id 1000", "run as that user"),
        (access(yama_scope=1), "only its ancestors", "kernel.yama.ptrace_scope=0"),
        (access(yama_scope=2), "wants CAP_SYS_PTRACE", "kernel.yama.ptrace_scope=1"),
        (access(yama_scope=3, capable=True), "nobody", "/etc/sysctl.d"),
        (access(own_user=0), "container", "--cap-add=SYS_PTRACE"),
        (access(own_user=0, their_user=7), "container", "--cap-add=SYS_PTRACE"),
        (access(), "protected", "run as root"),
    ],
)
def test_each_reason_comes_with_its_way_out(facts: Access, why: str, remedy: str) -> None:
    refusal = explain(facts)
    assert why in refusal.why
    assert remedy in refusal.remedy
    gap = Gap("stack of pid 7", 3, refusal.why, "stack", refusal.remedy)
    assert gap.reason == f"{refusal.why}; {refusal.remedy}"


def test_we_may_read_ourselves_and_no_filter_forbids_it() -> None:
    assert why_refused(os.getpid()) is None
    assert why_filtered() is None
