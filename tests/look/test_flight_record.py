"""torch's flight record and counters over a unix socket: from the installed torch, and broken."""

from __future__ import annotations

import http.server
import inspect
import json
import socket
import socketserver
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from processes import PATIENCE_S, until

from lightning_hangcheck.look.flight_record import (
    ENTRIES_KEPT,
    collective_numbers,
    flight_record,
    with_sites,
)
from lightning_hangcheck.model.evidence import Frame
from lightning_hangcheck.model.flight import (
    CallSite,
    CollectiveEntry,
    CollectiveRecord,
    FlightRecord,
    MessageCounts,
)
from lightning_hangcheck.session.collective_notes import CallNoter, NotedCall, note_group

if TYPE_CHECKING:
    from collections.abc import Iterator

    from processes import StartProgram

    Server = tuple[Path, dict[str, bytes]]


RECORDED = (Path(__file__).parent / "recorded" / "fr_trace_gloo.json").read_bytes()
COUNTERS = b'{"pytorch.wait_counter.TCPStore__get": {"active_count": 2, "total_calls": 9}}'


class _Answers(http.server.BaseHTTPRequestHandler):
    """Answers with what the server holds for each handler."""

    def do_POST(self) -> None:
        body = self.server.bodies.get(self.path.rpartition("/")[2])  # type: ignore[attr-defined]
        self.send_response(404 if body is None else 200)
        self.end_headers()
        self.wfile.write(body or b"")

    def address_string(self) -> str:
        return "unix"

    def log_message(self, *_: object) -> None:
        """A test's output is not for its requests."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A server on a unix socket, and what it answers."""
    path = tmp_path / "socket"
    with socketserver.UnixStreamServer(str(path), _Answers) as running:
        running.bodies = bodies = {"fr_trace_json": RECORDED, "wait_counter_values": COUNTERS}  # type: ignore[attr-defined]
        thread = threading.Thread(target=running.serve_forever, args=(0.05,))
        thread.start()
        yield path, bodies
        running.shutdown()
        thread.join(5)


def read(path: Path, rank: int = 0) -> FlightRecord:
    """The record, which must be there without a gap."""
    record, gaps = flight_record(path, rank, 5.0)
    assert gaps == ()
    return record


def test_a_recorded_gloo_trace_is_read(server: Server) -> None:
    record = read(server[0])
    (group,) = record.groups
    assert (group.group, group.description, group.ranks) == ("0", "default_pg", ())
    assert (group.last_enqueued, group.last_completed) == (2, 1)
    assert [(one.seq, one.op, one.sizes, one.retired) for one in group.entries] == [
        (1, "all_reduce", ((1,),), True),
        (2, "all_reduce", ((4,),), False),
    ]
    assert record.waits == {"TCPStore__get": 2}


def test_a_group_that_was_made_again_counts_anew(server: Server) -> None:
    """torch keeps what the group of that name did before it was destroyed."""
    path, bodies = server
    trace = json.loads(RECORDED)
    old, _ = trace["entries"]
    entered = [(1, "all_reduce"), (2, "all_reduce"), (3, "barrier"), (1, "broadcast")]
    trace["entries"] = [
        old | {"collective_seq_id": seq, "profiling_name": f"gloo:{name}", "time_created_ns": at}
        for at, (seq, name) in enumerate(entered, old["time_created_ns"])
    ]
    bodies["fr_trace_json"] = json.dumps(trace).encode()
    (group,) = read(path).groups
    assert (group.newest, [(one.seq, one.op) for one in group.entries]) == (1, [(1, "broadcast")])


def test_the_recorder_of_nccl_is_asked_too(server: Server) -> None:
    """Constructed from gloo's: both are written by one class of torch."""
    path, bodies = server
    trace = json.loads(RECORDED)
    for entry in trace["entries"]:
        entry["process_group"] = ["3", "tensor_parallel"]
        entry["profiling_name"] = "nccl:_all_gather_base"
    trace["pg_config"] = {"3": {"name": "3", "desc": "tensor_parallel", "ranks": "[0, 2]"}}
    bodies["dump_nccl_trace_json"] = json.dumps(trace).encode()
    record = read(path)
    assert [(one.group, one.ranks) for one in record.groups] == [("0", ()), ("3", (0, 2))]
    assert record.groups[1].entries[0].op == "_all_gather_base"
    assert [one.on_device for one in record.groups] == [False, True]


def nccl_trace(groups: dict[str, str], numbers: dict[int, int], *entries: object) -> bytes:
    """What NCCL's recorder answers: members by a group's name, numbers by a process's own count."""
    config = {name: {"name": name, "desc": "", "ranks": ranks} for name, ranks in groups.items()}
    status = {
        str(number): {"last_enqueued_collective": str(last), "last_completed_collective": str(last)}
        for number, last in numbers.items()
    }
    trace = {"entries": entries, "pg_config": config, "pg_status": status}
    return json.dumps(trace).encode()


def posted(name: str, number: int, **fields: object) -> dict[str, object]:
    """An entry of a message in group 2, as NCCL's recorder writes it."""
    return {
        "process_group": ["2", "pipeline"],
        "pg_id": 1,
        "collective_seq_id": 9,
        "p2p_seq_id": number,
        "profiling_name": f"nccl:{name}",
        "is_p2p": True,
        "retired": False,
        "time_created_ns": number,
        **fields,
    }


def test_groups_on_gpus_with_nothing_open_keep_their_own_numbers(server: Server) -> None:
    """NCCL's record drops what has ended: that a rank lags shows in the numbers alone.

    The rank's second group is named 2, its third 4: torch keys their numbers with 1 and 2.
    """
    path, bodies = server
    groups = {"0": "[0, 1, 2, 3]", "2": "[0, 2]", "4": "[0, 3]"}
    bodies["dump_nccl_trace_json"] = nccl_trace(groups, {0: 12, 1: 61, 2: 700})
    second, third = read(path).groups[1:]
    assert (second.group, second.ranks, second.on_device) == ("2", (0, 2), True)
    assert (second.last_enqueued, second.last_completed, second.entries) == (61, 61, ())
    assert (third.group, third.last_enqueued) == ("4", 700)


def test_numbers_whose_group_is_not_told_are_of_none(server: Server) -> None:
    """An entry tells of its own group alone; here group 2 has an open message."""
    path, bodies = server
    bodies["fr_trace_json"] = b'{"entries": []}'
    groups = {"0": "[0, 1]", "5f3a": "[0, 1]", "2": "[0, 2]"}
    numbers = {0: 12, 1: 3, 2: 700}
    bodies["dump_nccl_trace_json"] = nccl_trace(groups, numbers, posted("recv 0<-1", 3))
    found = {one.group: one.last_enqueued for one in read(path).groups}
    assert found.pop("2") == 9, "that of the collective before the message"
    assert found.keys() <= {"0"}


def test_messages_are_kept_apart_from_collectives(server: Server) -> None:
    """Of a batch torch tells the end of the whole; of an ended one it leaves out that alone."""
    path, bodies = server
    batch = [posted("send 0->2", 5), posted("recv 0<-2", 5)]
    ended = [posted("send 0->1", 4), posted("recv 0<-1", 4)]
    collective = posted("all_reduce", 0, is_p2p=False, time_created_ns=9)
    entries = [*ended, *batch, posted("coalesced", 5), posted("send 0->1", 6), collective]
    bodies["fr_trace_json"] = b'{"entries": []}'
    groups = {"2": "[3, 7, 11]"}
    bodies["dump_nccl_trace_json"] = nccl_trace(groups, {1: 6}, *entries)
    record = read(path, 3)
    (group,) = record.groups
    assert [(one.seq, one.op) for one in group.entries] == [(9, "all_reduce")]
    assert [(one.seq, one.away, one.sends, one.retired) for one in group.messages] == [
        (4, 4, True, True),
        (4, 4, False, True),
        (5, 8, True, False),
        (5, 8, False, False),
        (6, 4, True, False),
    ]


def test_what_the_rank_noted_completes_the_record(server: Server) -> None:
    """Members of a group, one that it has not used, and that it has posted no message."""
    path, _ = server
    before = read(path)
    note_group(path, "0", [0, 1])
    note_group(path, "1", [1, 2])
    record = read(path)
    assert before.messages is None
    assert [(one.group, one.ranks, one.last_enqueued) for one in record.groups] == [
        ("0", (0, 1), 2),
        ("1", (1, 2), 0),
    ]
    assert record.messages == MessageCounts()


@pytest.mark.parametrize(
    ("handler", "body", "reason"),
    [
        ("fr_trace_json", b'{"entries": [{"seq": 1}]}', "another form"),
        ("wait_counter_values", None, "this torch is too old"),
    ],
)
def test_an_answer_of_another_form_is_a_gap(
    server: Server, handler: str, body: bytes | None, reason: str
) -> None:
    path, bodies = server
    bodies[handler] = body
    record, (gap,) = flight_record(path, 3, 5.0)
    assert (record, gap.rank) == (None, 3)
    assert reason in gap.why


def test_a_rank_without_a_server_is_a_gap(tmp_path: Path) -> None:
    record, (gap,) = flight_record(tmp_path / "none", 1, 5.0)
    assert record is None
    assert "no worker server" in gap.why
    assert collective_numbers(tmp_path / "none", 1.0) == {}


@pytest.mark.parametrize(
    "sent", [b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\n\r\n"], ids=["headers", "body"]
)
def test_a_server_whose_answer_never_ends_is_left(tmp_path: Path, sent: bytes) -> None:
    """It sends a byte in time for each read: there is one limit for all of it."""
    ended = threading.Event()

    def answer(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection, suppress(OSError):
            connection.sendall(sent)
            while not ended.wait(0.05):
                connection.sendall(b"a")

    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        server.listen()
        thread = threading.Thread(target=answer, args=(server,))
        thread.start()
        try:
            record, (gap,) = flight_record(tmp_path / "socket", 1, 0.6)
        finally:
            ended.set()
            thread.join(30)
    assert record is None
    assert "gave no answer" in gap.why


@pytest.mark.real
def test_the_installed_torch_answers_as_we_read_it(program: StartProgram, tmp_path: Path) -> None:
    """The canary: it fails when torch renames its server, its handlers or the fields we read."""
    path = tmp_path / "torch" / "socket"
    running = program("flight_recorded.py", str(path), str(ENTRIES_KEPT + 10))
    assert running.first_words == "started"

    def all_ended() -> FlightRecord | None:
        """Gloo's own thread notes an end after it has woken who waited for it."""
        record, gaps = flight_record(path, 0, PATIENCE_S)
        assert gaps == ()
        return record if record.groups[0].last_completed == ENTRIES_KEPT + 10 else None

    (group,) = until(all_ended, "all to be noted as ended").groups
    assert (group.group, group.description) == ("0", "default_pg")
    assert len(group.entries) == ENTRIES_KEPT
    last = group.entries[-1]
    assert (last.op, last.sizes, last.dtypes, last.retired) == (
        "all_reduce",
        ((4, 2),),
        ("Float",),
        True,
    )
    assert group.last_enqueued == group.last_completed == last.seq == ENTRIES_KEPT + 10
    assert abs(last.created_ns / 1e9 - time.time()) < PATIENCE_S
    # gloo's two threads count ends in any order, each by its own number: the last one may stay
    ((entered, ended),) = set(collective_numbers(path, PATIENCE_S).values())
    assert (entered, 0 < ended <= entered) == (ENTRIES_KEPT + 10, True)


def test_messages_that_a_rank_posts_count_as_they_are_posted(tmp_path: Path) -> None:
    server = tmp_path / "torch" / "4711"
    noter, here = CallNoter(server), inspect.currentframe()
    assert collective_numbers(server, 1.0) == {"messages": (0, 0)}
    noter.note(here, reduction="SUM")
    for message in (2, 4, -2):  # to rank 1, to rank 3, from rank 1
        noter.note(None, message=message)
    assert collective_numbers(server, 1.0) == {"messages": (2, 1)}


STEP = CallSite((Frame("step", "/home/ada/train.py", 9),), reduction="SUM")
SAVE = CallSite((Frame("save", "/home/ada/train.py", 30),))


@pytest.mark.parametrize(
    ("entries", "calls", "sites"),
    [
        # what C++ enters between two calls has none
        ([(11, 7), (14, 7), (21, 7)], [(10, 7, 1), (20, 7, 2)], [1, 0, 2]),
        # threads beside each other
        ([(12, 7), (13, 8)], [(10, 8, 2), (11, 7, 1)], [1, 2]),
        # a record without threads
        ([(11, 0)], [(10, 7, 1)], [1]),
    ],
)
def test_a_call_belongs_to_the_operation_that_follows_it(
    entries: list[tuple[int, int]], calls: list[tuple[int, int, int]], sites: list[int]
) -> None:
    """Operations by when and in which thread they were entered; calls with their place."""
    operations = tuple(
        CollectiveEntry(seq=seq, op="all_reduce", created_ns=at_ns, thread=thread)
        for seq, (at_ns, thread) in enumerate(entries, start=1)
    )
    group = CollectiveRecord(group="0", last_enqueued=len(entries), entries=operations)
    record = FlightRecord(taken_ns=1, groups=(group,))
    found = with_sites(record, [NotedCall(*one) for one in calls], {1: STEP, 2: SAVE})
    assert [entry.site for entry in found.groups[0].entries] == sites
    assert found.sites.keys() == set(sites) - {0}
