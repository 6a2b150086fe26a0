"""Places where nodes cannot meet: one sentence each, and nobody waits for it; and sealed ones."""

from __future__ import annotations

import errno
import os
import resource
import signal
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cases import IN_BARRIER, job, rank
from long_tests import WHEN_ASKED_FOR
from processes import until

from lightning_hangcheck.errors import MeetingFailed
from lightning_hangcheck.model.run import NodePlace
from lightning_hangcheck.nodes import peers, store_place
from lightning_hangcheck.nodes.meeting_place import SEAL_BYTES, FolderPlace, SealedPlace
from lightning_hangcheck.nodes.peers import Peers
from lightning_hangcheck.nodes.store_place import CourierPlace
from lightning_hangcheck.nodes.word import word_of

if TYPE_CHECKING:
    from collections.abc import Sequence

STRANGER = 65_534
CASE = job(rank(0, IN_BARRIER))


class Stalled:
    """Storage that takes a request and does not answer, as a hard-mounted disk that is gone."""

    where = "folder /dead"

    def __init__(self) -> None:
        self.back = threading.Event()

    def post(self, key: str, value: bytes) -> None:
        self.back.wait()

    def look(self, key: str) -> bytes | None:
        self.back.wait()
        return None

    def look_all(self, keys: Sequence[str]) -> list[bytes | None]:
        return [self.look(key) for key in keys]

    def close(self) -> None:
        self.back.set()


def test_storage_that_stalls_is_said_by_whoever_tells_and_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peers, "TROUBLE_AFTER_S", 0.2)
    place = Stalled()
    with closing(Peers(NodePlace(number=1, nnodes=2), [place])) as node:
        node.start()

        def told() -> bool:
            node.tell(word_of(CASE, 1, 1), None)
            return "folder /dead has not answered for" in node.trouble

        until(told, "the sentence")
        place.back.set()


def test_a_folder_on_a_read_only_disk_is_a_sentence_with_a_way_out(tmp_path: Path) -> None:
    """Where there is none that we may mount, one below a file: nothing can be made there either."""
    (tmp_path / "file").write_text("")
    with pytest.raises(MeetingFailed, match="cannot be written") as failed:
        FolderPlace(tmp_path / "file" / "meet").post("node-0", b"1")
    assert "make it writable" in str(failed.value)


def test_storage_that_takes_no_more_is_named_and_keeps_no_half_file(tmp_path: Path) -> None:
    """Past a limit on the size of files, which stands for a full disk."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    handled = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, old[1]))
    try:
        with pytest.raises(MeetingFailed, match=os.strerror(errno.EFBIG)):
            FolderPlace(tmp_path / "meet").post("node-0", b"1" * 100_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, handled)
    assert list((tmp_path / "meet").iterdir()) == []


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


def test_a_folder_that_is_replaced_while_nodes_meet_is_looked_at_again(tmp_path: Path) -> None:
    place = FolderPlace(tmp_path / "meet")
    assert place.look("first") is None
    place.post("first", b"ours")
    assert place.look("first") == b"ours"
    (tmp_path / "meet").rename(tmp_path / "ours")
    (tmp_path / "meet").symlink_to(tmp_path / "ours")
    with pytest.raises(MeetingFailed, match="it is a link"):
        place.look("first")


ANSWERS_ITS_PID = """
import os
from multiprocessing.connection import Connection

import msgspec
from lightning_hangcheck.nodes.store_place import Answer

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
    monkeypatch.setattr(store_place, "own_command", lambda *_: own_python(ANSWERS_ITS_PID))
    with closing(CourierPlace("127.0.0.1", 29500)) as place:
        pid = int(place.look("first") or b"0")
        place.post("node-1", b"1" * size)
        os.kill(pid, signal.SIGSTOP)
        monkeypatch.setattr(store_place, "ANSWERED_WITHIN_S", 0.5)
        with pytest.raises(MeetingFailed, match="in time"):
            place.post("node-1", b"1" * size)
    assert not Path(f"/proc/{pid}").exists()


def own_python(source: str) -> list[str]:
    return [sys.executable, "-c", source]


@WHEN_ASKED_FOR
@pytest.mark.real
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


def test_what_one_node_leaves_another_reads(open_to_all: FolderPlace) -> None:
    SealedPlace(open_to_all, SECRET, "job").post("node-1", b"word")
    assert SealedPlace(open_to_all, SECRET, "job").look("node-1") == b"word"


def test_what_nobody_left_is_not_there(open_to_all: FolderPlace) -> None:
    assert SealedPlace(open_to_all, SECRET, "job").look("node-1") is None


@pytest.mark.parametrize(
    ("secret", "job"), [("another secret 99", "job"), (SECRET, "another job"), ("", "job")]
)
def test_the_word_of_another_secret_or_job_does_not_count(
    secret: str, job: str, open_to_all: FolderPlace, capfd: pytest.CaptureFixture[str]
) -> None:
    key = f"of-{secret}-{job}"
    SealedPlace(open_to_all, secret, job).post(key, b"word")
    assert SealedPlace(open_to_all, SECRET, "job").look(key) is None
    assert f"{key} is not used, it has no seal of this job; give all" in capfd.readouterr().err


def test_a_word_counts_under_its_own_key_only(open_to_all: FolderPlace) -> None:
    """A stranger cannot say for node 2 what node 1 said."""
    place = SealedPlace(open_to_all, SECRET, "job")
    place.post("node-1", b"word")
    open_to_all.post("node-2", open_to_all.look("node-1") or b"")
    assert place.look("node-2") is None


@pytest.mark.parametrize("cut", range(SEAL_BYTES + 4))
def test_a_word_that_was_cut_does_not_count(cut: int, open_to_all: FolderPlace) -> None:
    place = SealedPlace(open_to_all, SECRET, "job")
    place.post("node-1", b"word")
    open_to_all.post("node-1", (open_to_all.look("node-1") or b"")[:cut])
    assert place.look("node-1") is None


def test_the_secret_is_not_in_what_is_left(open_to_all: FolderPlace, tmp_path: Path) -> None:
    """A store of torch's shows all of it to whoever asks."""
    SealedPlace(open_to_all, SECRET, "job").post("node-1", b"word")
    for file in tmp_path.rglob("*"):
        assert SECRET not in file.name
        assert file.is_dir() or SECRET.encode() not in file.read_bytes()
