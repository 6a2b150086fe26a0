"""Nodes that go on in a folder where the store is lost, and who is known of whom.

They take turns here, and the clock of all is the test's: it goes on by a second a turn.
"""

from __future__ import annotations

from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING

import pytest
from cases import IN_BARRIER, job, rank

from lightning_hangcheck.errors import MeetingFailed
from lightning_hangcheck.model.run import NodePlace
from lightning_hangcheck.nodes import exchange
from lightning_hangcheck.nodes.circle import Circle
from lightning_hangcheck.nodes.digest import digest_of
from lightning_hangcheck.nodes.judging.succession import ALONE, Role
from lightning_hangcheck.nodes.places.meeting_place import FolderPlace
from lightning_hangcheck.text.moments import NANOSECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

NODES = 3
MOST_TURNS = 300


class Clock:
    """Tells the time that it was set to."""

    def __init__(self) -> None:
        self.now_ns = 1_000 * NANOSECONDS

    def __call__(self) -> int:
        return self.now_ns


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
    """Nodes that tell in turns.

    Args:
        folders: Of each node, the one in which it goes on.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        values: dict[str, bytes] = {}
        self.folders = folders
        self.folder = folders[0]
        self.stores = [Store(values) for _ in range(NODES)]
        self.clock = Clock()
        self.nodes = [
            Circle(NodePlace(number=n, nnodes=NODES), [store, FolderPlace(folder)], self.clock)
            for n, (store, folder) in enumerate(zip(self.stores, folders, strict=True))
        ]
        self.silent: set[int] = set()
        self._stamp = 0

    def turn(self) -> None:
        self.clock.now_ns += NANOSECONDS
        self._stamp += 1
        for number, node in enumerate(self.nodes):
            if number not in self.silent:
                node.tell(digest_of(job(rank(number, IN_BARRIER)), number, self._stamp), None)
                node.take_turn()

    def tell_until(self, done: Callable[[], object], what: str) -> None:
        for _ in range(MOST_TURNS):
            self.turn()
            if done():
                return
        raise AssertionError(f"{MOST_TURNS} turns, and not yet {what}")

    def meet(self) -> None:
        self.tell_until(
            lambda: (
                set(self.nodes[0].heard) == {1, 2}
                and all(node.role == Role(judge=0) for node in self.nodes[1:])
            ),
            "the nodes to meet in the store",
        )

    def lose_first(self) -> None:
        """The first node, and with it the store."""
        self.nodes[0].close()
        self.silent = {0}
        for store in self.stores:
            store.lost = True


@contextmanager
def meeting_in(folders: Sequence[Path]) -> Iterator[Job]:
    nodes = Job(folders)
    with ExitStack() as stack:
        for node in nodes.nodes:
            stack.enter_context(closing(node))
        yield nodes


@pytest.fixture
def meeting(tmp_path: Path) -> Iterator[Job]:
    """Three nodes, and a folder that all of them see."""
    with meeting_in([tmp_path / "nodes"] * NODES) as nodes:
        yield nodes


@pytest.fixture
def meeting_apart(tmp_path: Path) -> Iterator[Job]:
    """Three nodes, each with a folder of its own by the same name, as in containers."""
    with meeting_in([tmp_path / f"node{n}" / "nodes" for n in range(NODES)]) as nodes:
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


def test_where_the_first_node_is_lost_with_the_store_the_next_one_judges_in_the_folder(
    meeting: Job,
) -> None:
    """Neither of the two left tells the other anything before one judges: marks show that it came.

    The one that came there first sees that the other one followed, and need not wait for its turn.
    """
    meeting.meet()
    _, second, third = meeting.nodes
    meeting.stores[1].lost = True
    meeting.tell_until(lambda: third.moved, "the third node to see where the second one went")
    meeting.lose_first()
    roles = set[Role]()

    def told() -> bool:
        roles.add(third.role)
        return third.role == Role(judge=1) and second.role.judges and set(second.heard) == {2}

    meeting.tell_until(told, "the second node to judge for both")
    assert not any(role.claims or role.judges for role in roles)
    assert [node.trouble for node in (second, third)] == ["", ""]
    assert all(node.moved and "folder" in node.where for node in (second, third))


def test_a_folder_in_which_a_node_is_alone_is_no_place_where_nodes_meet(
    meeting_apart: Job,
) -> None:
    """Each would judge for a job of which it hears nobody, and nothing would say why."""
    meeting_apart.meet()
    meeting_apart.lose_first()
    left, roles = meeting_apart.nodes[1:], set[Role]()

    def told() -> bool:
        roles.update(node.role for node in left)
        return all(node.trouble for node in left)

    meeting_apart.tell_until(told, "both to say that they hear nobody")
    assert roles == {Role(judge=0), ALONE}
    for number, node in enumerate(left, 1):
        assert not node.moved
        assert node.where == Store.where
        assert not node.in_trouble, "the folder can be used: another node may come yet"
        assert f"no other node was seen in folder {meeting_apart.folders[number]};" in node.trouble
        assert "the store does not answer" in node.trouble
        assert "hangcheck merge" in node.trouble


def test_a_mark_that_an_earlier_job_left_moves_nobody(meeting: Job) -> None:
    FolderPlace(meeting.folder).post(exchange.MOVED_KEY, b"1 7")
    meeting.meet()
    for _ in range(20):
        meeting.turn()
    assert not any(node.moved for node in meeting.nodes)


def test_whoever_follows_knows_who_judged_and_whom_that_one_no_longer_heard(meeting: Job) -> None:
    meeting.meet()
    first, second = meeting.nodes[:2]
    gone = first.heard[2]
    meeting.silent = {0, 2}
    case = job(rank(0, IN_BARRIER))
    for stamp in range(1_000, 1_005):
        first.tell(digest_of(case, 0, stamp), None, silent=[gone])
        first.take_turn()
        meeting.turn()
    assert {node: [view.rank for view in one.views] for node, one in second.known.items()} == {
        0: [0],
        2: [2],
    }


def test_those_below_a_node_that_never_came_are_heard(tmp_path: Path) -> None:
    """In a job of 40 nodes, node 33 tells node 1, which is not there."""
    folder, clock = FolderPlace(tmp_path / "nodes"), Clock()
    first, low = (Circle(NodePlace(number=n, nnodes=40), [folder], clock) for n in (0, 33))
    with closing(first), closing(low):
        for stamp in range(20):
            clock.now_ns += NANOSECONDS
            for number, node in ((33, low), (0, first)):
                node.tell(digest_of(job(rank(number, IN_BARRIER)), number, stamp), None)
                node.take_turn()
        assert set(first.heard) == {33}
