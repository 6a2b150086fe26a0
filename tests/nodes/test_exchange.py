"""Who hears whom, in a real folder: nodes of one process, each with its own thread."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from cases import IN_BARRIER, job, rank
from processes import until

from lightning_hangcheck.model.run import NodePlace
from lightning_hangcheck.nodes.circle import Circle
from lightning_hangcheck.nodes.digest import digest_of
from lightning_hangcheck.nodes.encoding import pack, unpack
from lightning_hangcheck.nodes.judging.succession import Role
from lightning_hangcheck.nodes.places.meeting_place import FolderPlace

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

CASE = job(rank(0, IN_BARRIER))


def test_nodes_hear_each_other_and_the_others_follow_the_first(tmp_path: Path) -> None:
    nodes = [
        Circle(NodePlace(number=n, nnodes=2), [FolderPlace(tmp_path / "meet")]) for n in range(2)
    ]
    with closing(nodes[0]) as first, closing(nodes[1]) as second:
        stamps = iter(range(1_000))

        def heard() -> bool:
            for number, node in enumerate((first, second)):
                node.tell(digest_of(CASE, number, next(stamps)), None)
            return second.role == Role(judge=0) and set(first.heard) == {1}

        until(heard, "the nodes to hear each other", seconds=30.0)
        assert first.role == Role(judges=True)

        def clock_known() -> bool:
            heard()
            return 1 in first.clocks

        until(clock_known, "how far the clocks are apart", seconds=30.0)
        clock = first.clocks[1]
        assert abs(clock.ahead_s) <= clock.within_s + 0.001, "they have one clock"
        assert second.clocks == {}


def test_what_an_earlier_job_left_is_nobody(tmp_path: Path) -> None:
    """It does not change: such a node is not there."""
    folder = FolderPlace(tmp_path / "meet")
    folder.post("node-1", pack(digest_of(CASE, 1, 7)))
    with closing(Circle(NodePlace(number=0, nnodes=2), [folder])) as first:
        stamps = iter(range(1_000))

        def told() -> bool:
            first.tell(digest_of(CASE, 0, next(stamps)), None)
            data = folder.look("node-0")
            return data is not None and unpack(data)[0].nodes[0].stamp >= 10

        until(told, "the first node to look often", seconds=60.0)
        assert first.heard == {}


def test_bytes_that_are_no_digest_are_said_once_and_harm_nobody(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = FolderPlace(tmp_path / "meet")
    folder.post("node-1", b"none of ours")
    with closing(Circle(NodePlace(number=0, nnodes=2), [folder])) as first:
        first.tell(digest_of(CASE, 0, 1), None)
        said = ""

        def complained() -> bool:
            nonlocal said
            said += capfd.readouterr().err
            return "what node 1 tells is not used" in said

        until(complained, "one sentence", seconds=30.0)
        until(lambda: folder.look("first"), "what the first node tells")
