"""What one host sends of its look, read as if a stranger had written it."""

from __future__ import annotations

import msgspec
import pytest
from cases import IN_BARRIER, IN_LOAD, job, rank
from hypothesis import given
from hypothesis import strategies as st

from lightning_hangcheck.attach.hosts.message import HostMessage, decode_message, encode_message
from lightning_hangcheck.errors import UnreadableRun

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
