"""The address and the port at which ranks meet, on real sockets of this machine."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest
from subjects import subject

from lightning_hangcheck.doctor.launching import (
    master_address,
    master_port,
    meeting_point,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        yield listener.getsockname()[1]


@pytest.fixture
def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.mark.parametrize(
    ("command", "point"),
    [
        ("torchrun --nproc_per_node=2 a.py", None),
        ("torchrun --nnodes=2 --nproc_per_node=2 a.py", ("127.0.0.1", 29500)),
        ("torchrun --nproc_per_node=2 --master_port=123 a.py", ("127.0.0.1", 123)),
        ("torchrun --rdzv_endpoint=node0:400 a.py", ("node0", 400)),
        ("torchrun --master_addr=node0 a.py", ("node0", 29500)),
        ("torchrun --rdzv_endpoint=node0 a.py", ("node0", 29400)),
        ("torchrun --rdzv_endpoint=localhost:0 a.py", ("localhost", None)),
        ("torchrun --rdzv_endpoint=[::1]:400 a.py", ("::1", 400)),
        ("torchrun --rdzv_endpoint=[fe80::2] a.py", ("fe80::2", 29400)),
        ("torchrun --rdzv_backend=c10d a.py", ("localhost", 29400)),
        ("torchrun --standalone a.py", None),
        ("python a.py", ("from-variable", 77)),
    ],
)
def test_options_win_over_variables(command: str, point: tuple[str, int] | None) -> None:
    found = meeting_point(subject(command, MASTER_ADDR="from-variable", MASTER_PORT="77"))
    assert (found and found[:2]) == point


def test_a_name_that_nobody_knows_fails() -> None:
    (check,) = master_address(subject("python a.py", MASTER_ADDR="no-such-node.invalid"))
    assert check.status == "failed"
    assert "does not resolve" in check.sentence


@pytest.mark.parametrize(("nodes", "status"), [("1", "ok"), ("2", "failed")])
def test_loopback_will_do_for_one_node_only(nodes: str, status: str) -> None:
    run = subject(f"torchrun --nnodes={nodes} --master_addr=127.0.0.1 a.py")
    (check,) = master_address(run)
    assert check.status == status


def test_a_port_that_is_taken_fails_and_names_who_has_it(taken_port: int) -> None:
    run = subject("python a.py", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(taken_port))
    (check,) = master_port(run)
    assert check.status == "failed"
    assert f"pid {os.getpid()}" in check.sentence


def test_a_free_port_is_fine(free_port: int) -> None:
    run = subject("python a.py", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port))
    assert [check.status for check in master_port(run)] == ["ok"]


def test_a_run_that_meets_nowhere_yet_is_not_asked() -> None:
    assert master_address(subject("python a.py")) == ()
    assert master_port(subject("python a.py", MASTER_ADDR="localhost")) == ()
