"""Hosts that are named, programs that ask them, and messages read as if a stranger wrote them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import msgspec
import psutil
import pytest
from cases import IN_BARRIER, IN_LOAD, job, rank
from hypothesis import given
from hypothesis import strategies as st
from processes import end_by_pid, is_alive, until

from lightning_hangcheck.attach.hosts import (
    MOST_OUTPUT,
    HostMessage,
    answer_of,
    decode_message,
    encode_message,
    read_hosts,
)
from lightning_hangcheck.errors import BadUsage, UnreadableRun
from lightning_hangcheck.look.programs import ChildLate

if TYPE_CHECKING:
    from pathlib import Path


def test_what_other_programs_write_behind_a_host_is_passed_over() -> None:
    text = """\
# two racks
node0 slots=8
node1:8
ada@node2.cluster max_slots=8  # the third

10.0.0.4
fe80::1%eth0
[2001:db8::5]
"""
    hosts = ("node0", "node1", "ada@node2.cluster", "10.0.0.4", "fe80::1%eth0", "[2001:db8::5]")
    assert read_hosts(text, "hosts") == hosts


def test_pods_as_kubectl_prints_their_names() -> None:
    """By ``kubectl get pods -o name``, which the documentation feeds to `--hostfile`."""
    pods = ("pod/train-node-0-0-x7zr2", "pod/train-node-0-1-b4n9w")
    assert read_hosts("\n".join(pods), "-") == pods


def test_a_host_that_is_named_once_a_slot_is_one_host() -> None:
    assert read_hosts("node1\nnode1\nnode0\nnode1\n", "hosts") == ("node1", "node0")


@pytest.mark.parametrize(
    "line",
    [
        "-oProxyCommand=sh",
        "ada@-oProxyCommand=sh",
        "a;b",
        "$(id)",
        "pod/-x",
        "-o/x",
        "pod/../x",
        "../x",
        "/x",
        "pod/",
    ],
)
def test_a_line_that_is_no_host_is_refused_with_its_number(line: str) -> None:
    """ssh would take a leading dash for an option."""
    with pytest.raises(BadUsage, match="line 2 of hosts names no host"):
        read_hosts(f"node0\n{line}\n", "hosts")


def test_an_empty_file_is_refused() -> None:
    with pytest.raises(BadUsage, match="hosts names no host; write one host a line"):
        read_hosts("# nobody\n", "hosts")


CASE = job(rank(0, IN_BARRIER), rank(1, IN_LOAD))

SENT = HostMessage(case=CASE, said=("it is watched",))


def test_what_was_sent_is_read() -> None:
    assert decode_message(encode_message(SENT) + b"\n") == SENT


def test_a_message_is_one_line_that_does_nothing_to_a_terminal() -> None:
    odd = msgspec.structs.replace(SENT, said=("\x1b[2J\x9b31m\u202e\n",))
    line = encode_message(odd)
    assert line.decode().isprintable()
    assert decode_message(line) == odd


def test_what_a_login_shell_writes_first_is_passed_over() -> None:
    assert decode_message(b"Welcome to node1\nmodules loaded\n" + encode_message(SENT)) == SENT


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("world_size", "1000000000000"),
        ("world_size", "-1"),
        ("nnodes", "99999999"),
        ("local_world_size", "9" * 200),
        ("started_at", '"soon"'),
    ],
)
def test_what_cannot_be_is_refused(field: str, value: str) -> None:
    """A world size that cannot be would make as many ranks that are missing."""
    facts = msgspec.json.decode(encode_message(SENT))
    facts["case"]["run"][field] = msgspec.Raw(value.encode())
    with pytest.raises(UnreadableRun):
        decode_message(msgspec.json.encode(facts))


def test_a_number_beyond_reckoning_is_refused() -> None:
    huge = encode_message(SENT).replace(b'"taken_ns":', b'"taken_ns":99999999999999999999', 1)
    with pytest.raises(UnreadableRun):
        decode_message(huge)


@pytest.mark.parametrize(
    "sent", [b"", b"\n\n", b"hello", b"[" * 100_000, b'{"case":{}}', b'{"schema_version":9}']
)
def test_what_is_no_message_is_one_sentence(sent: bytes) -> None:
    with pytest.raises(UnreadableRun) as refused:
        decode_message(sent)
    assert "what it sent" in str(refused.value)


@given(at=st.integers(0, 10_000), byte=st.integers(0, 255), cut=st.integers(0, 10_000))
def test_a_damaged_message_is_read_or_refused(at: int, byte: int, cut: int) -> None:
    """Nothing else comes out of it, whatever was changed."""
    line = bytearray(encode_message(SENT))
    line[at % len(line)] = byte
    try:
        decode_message(bytes(line[: len(line) - cut % 3]))
    except UnreadableRun:
        return


LIMIT_S = 240.0

NEVER = threading.Event()


def shell(script: str) -> list[str]:
    return ["sh", "-c", script]


def test_all_that_it_wrote_and_how_it_ended() -> None:
    answer = answer_of(shell("echo out; echo err >&2; exit 4"), LIMIT_S, NEVER)
    assert (answer.stdout, answer.stderr, answer.returncode) == (b"out\n", b"err\n", 4)


@pytest.mark.parametrize("to", ["", " >&2"])
def test_one_that_writes_without_end_is_left_at_the_limit(to: str) -> None:
    with pytest.raises(ChildLate, match="it sent more than 32 MiB"):
        answer_of(shell(f"exec yes{to}"), LIMIT_S, NEVER)


def test_what_is_just_within_the_limit_is_heard() -> None:
    answer = answer_of(shell(f"head -c {MOST_OUTPUT} /dev/zero"), LIMIT_S, NEVER)
    assert len(answer.stdout) == MOST_OUTPUT


def test_one_that_takes_too_long_ends_with_all_that_it_started(tmp_path: Path) -> None:
    noted = tmp_path / "pid"
    script = f"sleep 1000 & echo $! > {noted}; wait"
    with pytest.raises(ChildLate, match=r"no answer within 1 s"):
        answer_of(shell(script), 1.0, NEVER)
    try:
        child = psutil.Process(int(noted.read_text()))
    except psutil.NoSuchProcess:
        return
    until(lambda: not is_alive(child), "its child to end")


def test_a_helper_in_the_background_that_keeps_the_outputs_open_is_not_waited_for(
    tmp_path: Path,
) -> None:
    """As ssh's master connection does."""
    noted = tmp_path / "pid"
    helper = f"setsid sh -c 'echo $$ > {noted}; exec sleep 1000' &"
    seen = f"until [ -s {noted} ]; do sleep 0.01; done"
    answer = answer_of(shell(f"{helper} {seen}; echo out"), LIMIT_S, NEVER)
    left = psutil.Process(int(noted.read_text()))
    assert is_alive(left), "it is nobody's to end"
    end_by_pid([left])
    assert answer.stdout == b"out\n"


def test_one_that_nobody_wants_to_hear_any_more_ends_at_once() -> None:
    given_up = threading.Event()
    given_up.set()
    with pytest.raises(ChildLate, match="interrupted"):
        answer_of(shell("exec sleep 1000"), LIMIT_S, given_up)
