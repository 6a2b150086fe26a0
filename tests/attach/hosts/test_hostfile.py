"""Hostfiles as MPI, DeepSpeed and batch systems write them, and lines that name no host."""

from __future__ import annotations

import pytest

from lightning_hangcheck.attach.hosts.hostfile import read_hosts
from lightning_hangcheck.errors import BadUsage


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
