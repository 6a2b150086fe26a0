"""What the kernel tells of TCP connections, asked about real ones."""

from __future__ import annotations

import os
import socket
from contextlib import closing

import pytest
from look.waits.blocked import with_holders

from lightning_hangcheck.look.kernel import kernel_state
from lightning_hangcheck.look.open_files import own_addresses, reach_of, tcp_connections
from lightning_hangcheck.model.evidence import Connection


@pytest.mark.parametrize(
    ("family", "server", "client"),
    [
        (socket.AF_INET, "127.0.0.1", "127.0.0.2"),
        (socket.AF_INET6, "::1", "::1"),
    ],
)
def test_both_ends_of_a_connection_and_its_bytes_are_told(
    family: socket.AddressFamily, server: str, client: str
) -> None:
    with closing(socket.socket(family)) as listens, closing(socket.socket(family)) as asks:
        listens.bind((server, 0))
        listens.listen()
        asks.bind((client, 0))
        asks.connect(listens.getsockname())
        accepted, _ = listens.accept()
        with closing(accepted):
            asks.sendall(b"x" * 1_000)
            assert len(accepted.recv(1_000, socket.MSG_WAITALL)) == 1_000
            found = tcp_connections()
            state, _ = kernel_state(os.getpid(), 0, 10.0)
            assert found is not None
            assert state is not None
            there = found[os.fstat(accepted.fileno()).st_ino]
            shown = f"[{server}]" if family is socket.AF_INET6 else server
            assert there.own == f"{shown}:{listens.getsockname()[1]}"
            assert there.remote.rpartition(":")[2] == str(asks.getsockname()[1])
            assert there.carried_bytes >= 1_000
            (state,) = with_holders([state])
            told = Connection(there.own, there.remote) in state.connections
            assert told == (server != client), "only what leads to another address"


def test_a_machine_that_answers_is_told_by_what_came_from_it() -> None:
    with closing(socket.socket()) as listens, closing(socket.socket()) as asks:
        listens.bind(("127.0.0.3", 0))
        listens.listen()
        asks.connect(listens.getsockname())
        asks.sendall(b"x")
        (reach,) = reach_of(["127.0.0.3", "127.0.0.4"], [os.getpid()])
        assert (reach.address, reach.unanswered) == ("127.0.0.3", 0)
        assert reach.heard_s < 5.0


def test_other_machines_know_this_one_by_no_address_of_its_own_loopback() -> None:
    assert not any(one.startswith("127.") or one == "[::1]" for one in own_addresses())
