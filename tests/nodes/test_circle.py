"""Nodes that go on in a folder where the store is lost, and who is known of whom."""

from __future__ import annotations

import time
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

import pytest
from cases import IN_BARRIER, job, rank
from processes import until

from lightning_hangcheck.errors import MeetingFailed
from lightning_hangcheck.model.run import NodePlace
from lightning_hangcheck.nodes import exchange
from lightning_hangcheck.nodes.circle import Circle
from lightning_hangcheck.nodes.digest import digest_of
from lightning_hangcheck.nodes.judging import moving
from lightning_hangcheck.nodes.judging.succession import Role
from lightning_hangcheck.nodes.places.meeting_place import FolderPlace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

NODES = 3
EVERY_S = 0.1


class Store:
    """Keys and values of all nodes, as one of them reaches them."""

    where = "torchrun's store at node0:29500"

    def __init__(self, values: dict[str, bytes]) -> None:
        self._values = values
        self.lost = False

    def post(self, key: str, value: bytes) -> None:
        self._refuse()
        self._values[key] = value

    def look(self, key: str) -> bytes | None:
        self._refuse()
        return self._values.get(key)

    def close(self) -> None:
        """Nothing is held open."""

    def _refuse(self) -> None:
        if self.lost:
            raise MeetingFailed("the store does not answer", "see whether its host runs")


class Job:
    """Nodes that tell in turns."""

    def __init__(self, folder: Path) -> None:
        values: dict[str, bytes] = {}
        self.folder = folder
        self.stores = [Store(values) for _ in range(NODES)]
        self.nodes = [
            Circle(NodePlace(number=n, nnodes=NODES), [store, FolderPlace(folder)])
            for n, store in enumerate(self.stores)
        ]
        self.silent: set[int] = set()
        self._stamp = 0
        self._again_at = 0.0

    def tell_until(self, done: Callable[[], object], what: str) -> None:
        def told() -> object:
            if time.monotonic() < self._again_at:
                return False
            self._again_at = time.monotonic() + EVERY_S
            self._stamp += 1
            for number, node in enumerate(self.nodes):
                if number not in self.silent:
                    node.tell(digest_of(job(rank(number, IN_BARRIER)), number, self._stamp), None)
            return done()

        until(told, what, seconds=60.0)

    def meet(self) -> None:
        self.tell_until(
            lambda: (
                set(self.nodes[0].heard) == {1, 2}
                and all(node.role == Role(judge=0) for node in self.nodes[1:])
            ),
            "the nodes to meet in the store",
        )


@pytest.fixture
def meeting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    """Three nodes, with less patience than in a job."""
    monkeypatch.setattr(moving, "MOVED_AFTER_S", 0.5)
    monkeypatch.setattr(exchange, "LISTENS_EVERY_S", 0.3)
    nodes = Job(tmp_path / "nodes")
    with ExitStack() as stack:
        for node in nodes.nodes:
            stack.enter_context(closing(node))
        yield nodes


def test_while_the_store_answers_the_folder_is_not_touched(meeting: Job) -> None:
    meeting.meet()
    assert not meeting.folder.exists()
    assert not any(node.moved for node in meeting.nodes)


@pytest.mark.parametrize("losing", [{2}, {0}, {0, 1, 2}], ids=["one", "the first", "all"])
def test_whoever_loses_the_store_all_go_on_in_the_folder(meeting: Job, losing: set[int]) -> None:
    meeting.meet()
    for number in losing:
        meeting.stores[number].lost = True
    meeting.tell_until(
        lambda: all(node.moved for node in meeting.nodes), "all nodes to be heard in the folder"
    )
    for number in losing:
        meeting.stores[number].lost = False
    before = {node: one.heard_ns for node, one in meeting.nodes[0].heard.items()}
    assert set(before) == {1, 2}
    meeting.tell_until(
        lambda: all(
            meeting.nodes[0].heard[node].heard_ns > heard_ns for node, heard_ns in before.items()
        ),
        "the first node to hear both again",
    )
    assert all(node.role == Role(judge=0) for node in meeting.nodes[1:])
    assert all("folder" in node.where for node in meeting.nodes)


def test_a_mark_that_an_earlier_job_left_moves_nobody(meeting: Job) -> None:
    FolderPlace(meeting.folder).post(exchange.MOVED_KEY, b"1 7")
    meeting.meet()
    turns = iter(range(20))
    meeting.tell_until(lambda: next(turns, None) is None, "some turns")
    assert not any(node.moved for node in meeting.nodes)


def test_whoever_follows_knows_who_judged_and_whom_that_one_no_longer_heard(meeting: Job) -> None:
    meeting.meet()
    first = meeting.nodes[0]
    gone = first.heard[2]
    meeting.silent = {0, 2}
    case = job(rank(0, IN_BARRIER))
    stamps = iter(range(1_000, 9_000))

    def told() -> bool:
        meeting.nodes[0].tell(digest_of(case, 0, next(stamps)), None, silent=[gone])
        return set(meeting.nodes[1].known) == {0, 2}

    meeting.tell_until(told, "the other node to know")
    known = meeting.nodes[1].known
    assert {node: [view.rank for view in one.views] for node, one in known.items()} == {
        0: [0],
        2: [2],
    }


def test_those_below_a_node_that_never_came_are_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a job of 40 nodes, node 33 tells node 1, which is not there."""
    monkeypatch.setattr(exchange, "RELIEVED_AFTER_S", 0.5)
    folder = FolderPlace(tmp_path / "nodes")
    first, low = (Circle(NodePlace(number=n, nnodes=40), [folder]) for n in (0, 33))
    stamps = iter(range(9_000))

    def told() -> bool:
        for number, node in ((0, first), (33, low)):
            node.tell(digest_of(job(rank(number, IN_BARRIER)), number, next(stamps)), None)
        time.sleep(EVERY_S)
        return set(first.heard) == {33}

    with closing(first), closing(low):
        until(told, "the first node to hear it", seconds=60.0)
