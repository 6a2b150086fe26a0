"""Nodes with two versions of this package: they work together where they can, and say it."""

from __future__ import annotations

from pathlib import Path

from launch.nodes.long.other_version import host_with_version
from launch.nodes.nodes_of_a_job import (
    LIKE_THIS,
    LONGEST_S,
    Host,
    Network,
    Node,
    end_all,
    network,
    until_all_say,
    variables,
)
from long_tests import LONG_TEST
from processes import PROGRAMS, until
from watch.launched import run_words, verdict_of

from lightning_hangcheck.nodes.word import VERSION
from lightning_hangcheck.version import __version__

__all__ = ["network"]
pytestmark = list(LONG_TEST)
OTHER = "9.9.9"
STALL_TIMEOUT = ("--stall-timeout", "12")


def start(network: Network, folder: Path, host: Host, *words: str) -> tuple[Node, Node]:
    """Two nodes with a rank each, the second one another host; they meet in a folder."""
    nodes = []
    for number, one in enumerate((LIKE_THIS, host)):
        environment = variables(network, number) | {"HANGCHECK_NODES_DIR": str(folder / "meet")}
        command = [one.python, str(PROGRAMS / "beating.py"), *words]
        hangcheck = run_words(command, *STALL_TIMEOUT, hangcheck=Path(one.python))
        one = one._replace(environment=environment)
        nodes.append(Node(network, number, folder / f"node{number}", hangcheck, host=one))
    first, second = nodes
    return first, second


def test_versions_that_understand_each_other_give_one_verdict_and_say_so(
    network: Network, tmp_path: Path
) -> None:
    other = host_with_version(tmp_path / "other", OTHER)
    nodes = first, second = start(network, tmp_path, other, "5", "still")
    try:
        until_all_say("hang", 0, 1, nodes=nodes)
        verdict = verdict_of(first.run_folder)
    finally:
        end_all(*nodes)
    assert len(verdict.ranks) == 2
    assert "stand_still" in verdict.summary
    sentence = f"node 1 has lightning-hangcheck {OTHER}, node 0 has {__version__}: they understand"
    assert first.said.count(sentence) == 1
    assert "is not used" not in first.said + second.said


def test_a_hang_is_found_by_each_for_itself_where_they_do_not(
    network: Network, tmp_path: Path
) -> None:
    """Each names the rank that it has; that the other was not seen, and why, is a gap."""
    other = host_with_version(tmp_path / "other", OTHER, words=VERSION + 1)
    nodes = start(network, tmp_path, other, "5", "still")
    try:
        for number, node in enumerate(nodes):
            until(
                lambda n=number, node=node: node.verdict() == ("hang", (n,)),
                "each node to name its rank",
                seconds=LONGEST_S,
            )
        verdicts = [verdict_of(node.run_folder) for node in nodes]
    finally:
        end_all(*nodes)
    for other_node, verdict in zip((1, 0), verdicts, strict=True):
        (why,) = [gap.why for gap in verdict.gaps if gap.what == f"node {other_node}"]
        assert why.startswith("what is told there is not used: it has version")
