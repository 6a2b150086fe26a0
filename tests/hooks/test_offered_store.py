"""Where a store that is offered listens: where the other nodes come, and nowhere else."""

from __future__ import annotations

import socket

import pytest

from lightning_hangcheck.hooks.places import EVERYWHERE, StorePlace, listen, offered_store


def _outer_address() -> str | None:
    """An address of this machine that is not loopback, where it has one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # nothing is sent
        except OSError:
            return None
        return str(probe.getsockname()[0])


def _listens_at(host: str) -> str:
    with listen(host, 0) as listening:
        return str(listening.getsockname()[0])


def test_the_address_that_the_others_were_told_or_everywhere_where_it_is_none_of_ours() -> None:
    """The others come by a name or a translated address that this machine does not know."""
    assert _listens_at("127.0.0.1") == _listens_at("localhost") == "127.0.0.1"
    outer = _outer_address()
    if outer is not None:
        assert _listens_at(outer) == outer
    assert _listens_at("no-such-host.invalid") == _listens_at("192.0.2.1") == EVERYWHERE


def test_a_name_that_leads_itself_to_loopback_is_served_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As Debian's installer writes it into /etc/hosts."""
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.1.1", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    assert _listens_at("node0") == EVERYWHERE


def test_a_port_that_is_taken_is_refused() -> None:
    with listen("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(OSError, match="Address already in use"):
            listen("127.0.0.1", port)


def test_all_who_meet_at_a_store_hold_to_the_first_word() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    served = offered_store("127.0.0.1", port, "a", 20.0)
    another = StorePlace.of_agent("127.0.0.1", port, "a")
    assert another.decide("outcome", b"\xff failed") == b"\xff failed"
    assert served.decide("outcome", b"went well") == b"\xff failed"
    assert served.look("outcome") == b"\xff failed"
