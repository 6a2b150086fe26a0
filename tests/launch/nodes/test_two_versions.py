"""Nodes with two versions of this package: they work together where they can, and say it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from launch.nodes.other_version import host_with_version
from launch.nodes_of_a_job import LONGEST_S, Network, end_all, network, start
from processes import until
from watch.launched import verdict_of

from lightning_hangcheck.nodes.encoding import VERSION
from lightning_hangcheck.version import __version__

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["network"]
ASKED_FOR = "RUN_LONG_TESTS" in os.environ
pytestmark = [
    pytest.mark.real,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not ASKED_FOR, reason="it takes a minute; RUN_LONG_TESTS=1 runs it"),
]
OTHER = "9.9.9"
STALL_TIMEOUT = ("--stall-timeout", "25")


def test_versions_that_understand_each_other_give_one_verdict_and_say_so(
    network: Network, tmp_path: Path
) -> None:
    hosts = {1: host_with_version(tmp_path / "other", OTHER)}
    nodes = first, second = start(network, tmp_path, ["100", "1"], *STALL_TIMEOUT, hosts=hosts)
    try:
        for node in nodes:
            until(
                lambda node=node: node.verdict() == ("hang", (1,)),
                "both nodes to say which rank",
                seconds=LONGEST_S,
            )
        verdict = verdict_of(first.run_folder)
    finally:
        end_all(*nodes)
    assert (verdict.victims, len(verdict.ranks)) == ((0,), 2)
    assert "stand_still" in verdict.summary
    sentence = f"node 1 has lightning-hangcheck {OTHER}, node 0 has {__version__}: they understand"
    assert first.said.count(sentence) == 1
    assert "is not used" not in first.said + second.said


def test_versions_that_do_not_each_judge_their_own_ranks_and_harm_nobody(
    network: Network, tmp_path: Path
) -> None:
    hosts = {1: host_with_version(tmp_path / "other", OTHER, words=VERSION + 1)}
    nodes = first, second = start(network, tmp_path, ["400"], *STALL_TIMEOUT, hosts=hosts)
    try:
        codes = [node.process.wait(LONGEST_S) for node in nodes]
    finally:
        end_all(*nodes)
    assert codes == [0, 0], [node.said for node in nodes]
    assert [node.verdict() for node in nodes] == [("finished", ())] * 2
    install = "install the same lightning-hangcheck on all nodes"
    newer, older = VERSION + 1, VERSION
    here = f"what node 1 tells is not used: it has version {newer}, this one reads {older}"
    there = f"what the first node tells is not used: it has version {older}, this one reads {newer}"
    assert first.said.count(f"{here}: {install}") == 1
    assert second.said.count(f"{there}: {install}") == 1
    for node in nodes:
        assert "suspect" not in node.said.lower()
        assert "do not hear each other" not in node.said


def test_a_hang_is_found_by_each_for_itself_where_they_do_not(
    network: Network, tmp_path: Path
) -> None:
    """The node of the stalled rank names it; the other knows only that it was not seen, and why."""
    hosts = {1: host_with_version(tmp_path / "other", OTHER, words=VERSION + 1)}
    nodes = first, second = start(network, tmp_path, ["100", "1"], *STALL_TIMEOUT, hosts=hosts)
    try:
        until(
            lambda: second.verdict() == ("hang", (1,)),
            "the node of the rank to name it",
            seconds=LONGEST_S,
        )
        until(
            lambda: first.verdict()[0] == "hang",
            "the first node to say that its rank waits",
            seconds=LONGEST_S,
        )
        verdict = verdict_of(first.run_folder)
    finally:
        end_all(*nodes)
    assert 0 not in verdict.culprits
    reasons = [gap.why for gap in verdict.gaps if gap.what == "node 1"]
    assert len(reasons) == 1
    assert "what is told there is not used: it has version" in reasons[0]
