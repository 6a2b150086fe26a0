"""Interfaces that variables choose: there, and not there."""

from __future__ import annotations

import psutil
import pytest
from subjects import subject

from lightning_hangcheck.doctor.launching import network_interface

UP = next(name for name, state in psutil.net_if_stats().items() if state.isup)


@pytest.mark.parametrize("chosen", [UP, UP[:2], f"={UP}", "^no-such", f"other,{UP}"])
def test_an_interface_that_is_up_is_fine(chosen: str) -> None:
    (check,) = network_interface(subject("torchrun a.py", NCCL_SOCKET_IFNAME=chosen))
    assert check.status == "ok"


@pytest.mark.parametrize(("nodes", "status"), [(2, "failed"), (1, "ok")])
@pytest.mark.parametrize("variable", ["GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"])
def test_loopback_will_do_for_one_node_only(variable: str, nodes: int, status: str) -> None:
    command = f"torchrun --nnodes={nodes} --nproc_per_node=2 a.py"
    (check,) = network_interface(subject(command, **{variable: "lo"}))
    assert check.status == status


@pytest.mark.parametrize(
    "variables",
    [
        {"NCCL_SOCKET_IFNAME": "ib77"},
        {"NCCL_SOCKET_IFNAME": f"={UP}x"},
        {"GLOO_SOCKET_IFNAME": "ib77"},
        {"GLOO_SOCKET_IFNAME": f"{UP},ib77"},
    ],
)
def test_an_interface_that_is_not_there_fails(variables: dict[str, str]) -> None:
    (check,) = network_interface(subject("torchrun a.py", **variables))
    assert check.status == "failed"
    assert check.remedy.startswith(f"export {next(iter(variables))}=")
