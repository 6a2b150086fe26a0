"""Nodes that go on in a folder where the store is lost, and who is known of whom."""

from __future__ import annotations

import time
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING

import pytest
from cases import IN_BARRIER, job, rank
from processes import until

from lightning_hangcheck.errors import MeetingFailed
from lightning_hangcheck.model.run import NodePlace
from lightning_hangcheck.nodes import exchange
from lightning_hangcheck.nodes.circle import Circle
from lightning_hangcheck.nodes.digest import digest_of
from lightning_hangcheck.nodes.judging import moving, succession
from lightning_hangcheck.nodes.judging.succession import ALONE, Role
from lightning_hangcheck.nodes.places.meeting_place import FolderPlace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
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
    """Nodes that tell in turns.

    Args:
        folders: Of each node, the one in which it goes on.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        values: dict[str, bytes] = {}
        self.folders = folders
        self.folder = folders[0]
        self.stores = [Store(values) for _ in range(NODES)]
        self.nodes = [
            Circle(NodePlace(number=n, nnodes=NODES), [store, FolderPlace(folder)])
            for n, (store, folder) in enumerate(zip(self.stores, folders, strict=True))
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
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less patience than in a job."""
    monkeypatch.setattr(moving, "MOVED_AFTER_S", 0.5)
    monkeypatch.setattr(exchange, "LISTENS_EVERY_S", 0.3)


@pytest.fixture
def meeting(hasty: None, tmp_path: Path) -> Iterator[Job]:
    """Three nodes, and a folder that all of them see."""
    with meeting_in([tmp_path / "nodes"] * NODES) as nodes:
        yield nodes


@pytest.fixture
def meeting_apart(hasty: None, tmp_path: Path) -> Iterator[Job]:
    """Three nodes, each with a folder of its own by the same name, as in containers."""
    with meeting_in([tmp_path / f"node{n}" / "nodes" for n in range(NODES)]) as nodes:
        yield nodes


@pytest.fixture
def successors_in_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whom they follow is lost after seconds."""
    monkeypatch.setattr(succession, "SILENT_AFTER_S", 3.0)
    monkeypatch.setattr(succession, "STEP_S", 1.0)
    monkeypatch.setattr(succession, "GAP_S", 1.0)
    monkeypatch.setattr(succession, "HELD_S", 1.0)


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


@pytest.mark.usefixtures("successors_in_haste")
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


@pytest.mark.usefixtures("successors_in_haste")
def test_a_folder_in_which_a_node_is_alone_is_no_place_where_nodes_meet(
    meeting_apart: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each would judge for a job of which it hears nobody, and nothing would say why."""
    monkeypatch.setattr(exchange, "TROUBLE_AFTER_S", 8.0)
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
