"""Who hears whom, who judges, where nodes go on, and places where they cannot meet.

Nodes take turns; the clock of all is the test's: it goes on by a second a turn.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cases import IN_BARRIER, job, rank
from hypothesis import given, settings
from hypothesis import strategies as some
from long_tests import real_when_asked_for
from msgspec.structs import replace
from processes import until

from lightning_hangcheck.errors import MeetingFailed
from lightning_hangcheck.identity import NodePlace
from lightning_hangcheck.model.case import RankView
from lightning_hangcheck.model.flight import CollectiveRecord, FlightRecord, GroupFamily, GroupRun
from lightning_hangcheck.nodes import meeting_place, who_judges
from lightning_hangcheck.nodes.encoding import pack
from lightning_hangcheck.nodes.meeting_place import (
    SEAL_BYTES,
    CourierPlace,
    FolderPlace,
    SealedPlace,
)
from lightning_hangcheck.nodes.message import class_of, message_of
from lightning_hangcheck.nodes.who_judges import ALONE, SILENT_AFTER_S, Peers, Role
from lightning_hangcheck.text.shown import NANOSECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

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

    def look_all(self, keys: Sequence[str]) -> list[bytes | None]:
        return [self.look(key) for key in keys]

    def close(self) -> None:
        """Nothing is held open."""

    def _refuse(self) -> None:
        if self.lost:
            raise MeetingFailed("the store does not answer", "see whether its host runs")


class Job:
    """Nodes that tell in turns; each has a folder in which it goes on, or only the store."""

    def __init__(self, folders: Sequence[Path] = (), nodes: int = NODES) -> None:
        self.values: dict[str, bytes] = {}
        self.folders = folders
        self.stores = [Store(self.values) for _ in range(nodes)]
        self.clock = Clock()
        self.nodes = [
            Peers(
                NodePlace(number=n, nnodes=nodes),
                [store, *map(FolderPlace, folders[n : n + 1])],
                self.clock,
            )
            for n, store in enumerate(self.stores)
        ]
        self.silent: set[int] = set()

    def turn(self, *silent: int) -> None:
        self.clock.now_ns += NANOSECONDS
        for number, node in enumerate(self.nodes):
            if number not in self.silent and number not in silent:
                node.tell(message_of(job(rank(number, IN_BARRIER)), number, 1))
                node.take_turn()

    def turns(self, seconds: float) -> None:
        for _ in range(int(seconds)):
            self.turn()

    def tell_until(self, done: Callable[[], object], what: str) -> None:
        for _ in range(MOST_TURNS):
            self.turn()
            if done():
                return
        raise AssertionError(f"{MOST_TURNS} turns, and not yet {what}")

    def meet(self) -> None:
        others = set(range(1, len(self.nodes)))
        self.tell_until(
            lambda: (
                set(self.nodes[0].others) == others
                and all(node.role == Role(judge=0) for node in self.nodes[1:])
            ),
            "the nodes to meet in the store",
        )

    def lose_first(self) -> None:
        """The first node, and with it the store."""
        self.silent = {0}
        for store in self.stores:
            store.lost = True

    def roles(self) -> dict[int, Role]:
        return {n: one.role for n, one in enumerate(self.nodes) if n not in self.silent}

    def settled(self) -> bool:
        """Whether the lowest node that is heard judges, and all others follow it."""
        first, *others = sorted(self.roles())
        return self.roles() == {first: Role(judges=True), **{n: Role(judge=first) for n in others}}


@pytest.fixture
def meeting(tmp_path: Path) -> Iterator[Job]:
    """Three nodes, and a folder that all of them see."""
    yield from closed(Job([tmp_path / "nodes"] * NODES))


def closed(nodes: Job) -> Iterator[Job]:
    with ExitStack() as stack:
        for node in nodes.nodes:
            stack.enter_context(closing(node))
        yield nodes


@settings(max_examples=12, deadline=None)
@given(some.sets(some.integers(0, 5), max_size=5), some.sets(some.integers(0, 5), max_size=5))
def test_the_lowest_of_those_that_are_heard_judges_and_all_others_follow_it(
    absent: set[int], lost: set[int]
) -> None:
    """Whether the others never came, fall silent, or come back."""
    nodes = Job(nodes=6)
    for silent in (absent, lost, absent & lost, set[int]()):
        nodes.silent = silent - {max(silent)} if len(silent) == 6 else silent
        nodes.tell_until(nodes.settled, f"the lowest node but {silent} to judge")
        first = min(nodes.roles())
        nodes.tell_until(
            lambda first=first: nodes.nodes[first].others.keys() >= nodes.roles().keys() - {first},
            "it to hear all others",
        )


def test_a_node_that_reaches_no_place_judges_alone_and_listens_before_it_does_for_others() -> None:
    """One whose own network was cut must not step up the moment that it is back."""
    nodes = Job()
    nodes.meet()
    nodes.stores[1].lost = True
    nodes.turns(40)
    assert nodes.roles()[1] == ALONE
    nodes.stores[1].lost = False
    for _ in range(30):
        nodes.turn()
        assert not nodes.roles()[1].judges
    assert nodes.roles()[1] == Role(judge=0)


def test_who_begins_to_judge_calls_nobody_silent_before_it_has_listened_itself() -> None:
    """The first node had lost another one for a moment: who follows it hears that one soon."""
    nodes = Job()
    nodes.meet()
    nodes.silent = {2}
    nodes.turns(SILENT_AFTER_S + 2)
    nodes.silent = {0}
    said = []
    for _ in range(int(SILENT_AFTER_S) + 10):
        nodes.turn()
        node = nodes.nodes[1]
        said += [n for n, one in node.others.items() if node.role.judges and node.silent_s(one)]
    assert set(said) == {0}
    assert nodes.settled()


def test_while_the_store_answers_the_folder_is_not_touched(meeting: Job) -> None:
    meeting.meet()
    meeting.turns(30)
    assert not meeting.folders[0].exists()
    assert not any(node.moved for node in meeting.nodes)


@pytest.mark.parametrize("losing", [{2}, {0}, {0, 1, 2}], ids=["one", "the first", "all"])
def test_whoever_loses_the_store_goes_on_in_the_folder_and_is_heard(
    meeting: Job, losing: set[int]
) -> None:
    meeting.meet()
    for number in losing:
        meeting.stores[number].lost = True
    meeting.tell_until(
        lambda: all(meeting.nodes[number].moved for number in losing), "them to be heard there"
    )
    meeting.turns(30)
    assert meeting.settled()
    first = meeting.nodes[0]
    assert set(first.others) == {1, 2}
    assert not any(first.silent_s(one) for one in first.others.values())
    assert "folder" in first.where


def test_where_the_first_node_is_lost_with_the_store_the_next_one_judges_in_the_folder(
    meeting: Job,
) -> None:
    meeting.meet()
    _, second, third = meeting.nodes
    meeting.lose_first()
    meeting.tell_until(
        lambda: meeting.settled() and set(second.others) >= {2}, "the second node to judge for both"
    )
    assert [node.trouble for node in (second, third)] == ["", ""]
    assert all(node.moved and "folder" in node.where for node in (second, third))


def test_what_an_earlier_job_left_is_nobody_and_of_two_words_of_a_node_the_newer_counts() -> None:
    """What does not change is of nobody; slow storage may show an older word later."""
    nodes = Job(nodes=2)
    nodes.silent = {1}
    nodes.values["node-1"] = pack(message_of(job(rank(1, IN_BARRIER)), 1, 1))
    nodes.turns(10)
    assert nodes.nodes[0].others == {}
    for stamp in (9, 5):
        nodes.values["node-1"] = pack(message_of(job(rank(1, IN_BARRIER)), 1, stamp))
        nodes.turn()
    assert nodes.nodes[0].others[1].message.stamp == 9


def test_bytes_that_are_no_word_are_said_once_and_harm_nobody(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Of the third node a group with a name of 5,000 digits, which Python reads as no number."""
    family = GroupFamily((0, 1, 1), (GroupRun(0, 1, 1, "1" * 5_000, 1),))
    flight = FlightRecord(taken_ns=1, groups=(CollectiveRecord(group="1"),))
    odd = class_of(RankView(rank=2, flight=flight), (family,), 0)
    nodes = Job(nodes=4)
    nodes.silent = {1, 2}
    for stamp in range(1, 4):
        nodes.values["node-1"] = b"none of ours" * stamp
        message = message_of(job(rank(2, IN_BARRIER)), 2, stamp)
        nodes.values["node-2"] = pack(replace(message, lines=(odd,)))
        nodes.turn()
    assert (set(nodes.nodes[0].others), set(nodes.nodes[0].unused)) == ({3}, {1, 2})
    said = capfd.readouterr().err
    assert said.count("what node 1 tells is not used") == 1
    assert "nodes do not hear each other" not in said


def test_who_has_the_number_of_another_node_is_found_in_some_seconds() -> None:
    nodes = Job(nodes=2)
    nodes.meet()
    nodes.turns(20)
    assert nodes.nodes[1].same_number is None
    for stamp in range(1, 30):
        message = message_of(job(rank(1, IN_BARRIER)), 1, stamp, addresses=("10.0.0.5",))
        nodes.values["node-1"] = pack(message)
        nodes.turn()
    assert nodes.nodes[1].same_number == ("10.0.0.5",)


STRANGER = 65_534


class Stalled(Store):
    """Storage that takes a request and does not answer, as a hard-mounted disk that is gone."""

    where = "folder /dead"

    def __init__(self) -> None:
        super().__init__({})
        self.back = threading.Event()

    def _refuse(self) -> None:
        self.back.wait()

    def close(self) -> None:
        self.back.set()


def test_storage_that_stalls_is_said_by_whoever_tells_and_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(who_judges, "TROUBLE_AFTER_S", 0.2)
    place = Stalled()
    with closing(Peers(NodePlace(number=1, nnodes=2), [place])) as node:
        node.start()

        def told() -> bool:
            node.tell(message_of(job(rank(0, IN_BARRIER)), 1, 1), None)
            return "folder /dead has not answered for" in node.trouble

        until(told, "the sentence")
        place.back.set()


def test_a_folder_on_a_read_only_disk_is_a_sentence_with_a_way_out(tmp_path: Path) -> None:
    """Where there is none that we may mount, one below a file: nothing can be made there either."""
    (tmp_path / "file").write_text("")
    with pytest.raises(MeetingFailed, match="cannot be written") as failed:
        FolderPlace(tmp_path / "file" / "meet").post("node-0", b"1")
    assert "make it writable" in str(failed.value)


@pytest.mark.parametrize("kind", ["folder", "link"])
def test_a_word_in_a_folder_that_somebody_else_made_first_is_not_read(
    kind: str, tmp_path: Path
) -> None:
    """Where all may write, a stranger could have the nodes tell a verdict of his."""
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "first").write_bytes(b"hang")
    for path in (theirs, theirs / "first"):
        os.chown(path, STRANGER, STRANGER)
    meet = theirs
    if kind == "link":
        meet = tmp_path / "meet"
        meet.symlink_to(theirs)
    place = FolderPlace(meet)
    why = "it is a link" if kind == "link" else f"it belongs to user id {STRANGER}"
    with pytest.raises(MeetingFailed, match=why):
        place.look("first")
    with pytest.raises(MeetingFailed, match=why):
        place.post("node-0", b"1")


ANSWERS_ITS_PID = """
import os
from multiprocessing.connection import Connection

import msgspec
from lightning_hangcheck.nodes.meeting_place import Answer

line = Connection(os.dup(0))
answer = msgspec.msgpack.encode(Answer(values=(str(os.getpid()).encode(),)))
line.send_bytes(answer)
while True:
    line.recv_bytes()
    line.send_bytes(answer)
"""


@pytest.mark.parametrize("size", [10, 1_000_000], ids=["less than a pipe holds", "more"])
def test_who_talks_with_a_store_and_is_stopped_holds_nobody_up(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writing to it has the limit, too: a pipe holds 64 KiB, and a large job's digest is more."""
    asked = [sys.executable, "-c", ANSWERS_ITS_PID]
    monkeypatch.setattr(meeting_place, "own_command", lambda *_: asked)
    with closing(CourierPlace("127.0.0.1", 29500)) as place:
        pid = int(place.look("first") or b"0")
        place.post("node-1", b"1" * size)
        os.kill(pid, signal.SIGSTOP)
        monkeypatch.setattr(meeting_place, "ANSWERED_WITHIN_S", 0.5)
        with pytest.raises(MeetingFailed, match="in time"):
            place.post("node-1", b"1" * size)
    assert not Path(f"/proc/{pid}").exists()


@real_when_asked_for
def test_a_master_address_that_does_not_resolve_is_named_whenever_it_is_asked() -> None:
    """Also in the seconds before it is tried again: what is wrong is told a minute later."""
    place = CourierPlace("no-such-host.invalid", 29500)
    sentence = r"MASTER_ADDR 'no-such-host\.invalid' does not resolve"
    with closing(place):
        for _ in range(2):
            with pytest.raises(MeetingFailed, match=sentence):
                place.look("first")


SECRET = "0123456789abcdef"  # noqa: S105 - of this test alone


@pytest.fixture
def open_to_all(tmp_path: Path) -> FolderPlace:
    return FolderPlace(tmp_path / "meet")


@pytest.mark.parametrize(
    ("secret", "job"), [("another secret 99", "job"), (SECRET, "another job"), ("", "job")]
)
def test_the_word_of_another_secret_or_job_does_not_count(
    secret: str, job: str, open_to_all: FolderPlace, capfd: pytest.CaptureFixture[str]
) -> None:
    key = f"of-{secret}-{job}"
    SealedPlace(open_to_all, secret, job).post(key, b"message")
    assert SealedPlace(open_to_all, SECRET, "job").look(key) is None
    assert f"{key} is not used, it has no seal of this job; give all" in capfd.readouterr().err


def test_a_word_counts_under_its_own_key_only(open_to_all: FolderPlace) -> None:
    """A stranger cannot say for node 2 what node 1 said."""
    place = SealedPlace(open_to_all, SECRET, "job")
    place.post("node-1", b"message")
    open_to_all.post("node-2", open_to_all.look("node-1") or b"")
    found = [place.look(f"node-{number}") for number in (1, 2, 3)]
    assert found == [b"message", None, None]


@pytest.mark.parametrize("cut", range(SEAL_BYTES + 4))
def test_a_word_that_was_cut_does_not_count(cut: int, open_to_all: FolderPlace) -> None:
    place = SealedPlace(open_to_all, SECRET, "job")
    place.post("node-1", b"message")
    open_to_all.post("node-1", (open_to_all.look("node-1") or b"")[:cut])
    assert place.look("node-1") is None


def test_the_secret_is_not_in_what_is_left(open_to_all: FolderPlace, tmp_path: Path) -> None:
    """A store of torch's shows all of it to whoever asks."""
    SealedPlace(open_to_all, SECRET, "job").post("node-1", b"message")
    for file in tmp_path.rglob("*"):
        assert SECRET not in file.name
        assert file.is_dir() or SECRET.encode() not in file.read_bytes()
