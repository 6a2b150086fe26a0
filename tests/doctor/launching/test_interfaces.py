"""Interfaces that variables choose: there, and not there."""

from __future__ import annotations

import psutil
import pytest
from subjects import subject

from lightning_hangcheck.doctor.launching.interfaces import interface_chosen

UP = next(name for name, state in psutil.net_if_stats().items() if state.isup)


@pytest.mark.parametrize("chosen", [UP, UP[:2], f"={UP}", "^no-such", f"other,{UP}"])
def test_an_interface_that_is_up_is_fine(chosen: str) -> None:
    (check,) = interface_chosen(subject("torchrun a.py", NCCL_SOCKET_IFNAME=chosen))
    assert check.status == "ok"


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
    (check,) = interface_chosen(subject("torchrun a.py", **variables))
    assert check.status == "failed"
    assert check.remedy.startswith(f"export {next(iter(variables))}=")
