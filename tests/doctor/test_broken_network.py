"""A network that leads nowhere, and a host that takes its own name for loopback.

Both are made in namespaces of their own, so that this machine's are left alone.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

IN_NAMESPACES = ("unshare", "--user", "--map-root-user", "--net", "--uts")
TIME_LIMIT_S = 240.0
ASK = """
import fcntl, json, socket, struct, sys
from msgspec.structs import asdict
from lightning_hangcheck.doctor.launch_checks import network_interface
from lightning_hangcheck.doctor.launch_checks import master_port
from lightning_hangcheck.doctor.check import Subject
from pathlib import Path
name, check, command, environment = json.loads(sys.argv[1])
socket.sethostname(name)
UP, SET_FLAGS = 1, 0x8914  # linux/if.h, linux/sockios.h
with socket.socket() as any_socket:
    fcntl.ioctl(any_socket, SET_FLAGS, struct.pack("16sH14x", b"lo", UP))
run = Subject(command=tuple(command.split()), environment=environment, run_dir=Path("runs"))
(found,) = {"interface": network_interface, "port": master_port}[check](run)
print(json.dumps(asdict(found) | {"remedy": found.remedy}))
"""


@pytest.fixture(scope="module", autouse=True)
def _allowed() -> None:
    try:
        subprocess.run([*IN_NAMESPACES, "true"], check=True, capture_output=True, timeout=120)
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"no namespaces here: {error}")


def _asked(host_name: str, check: str, command: str, **environment: str) -> dict[str, str]:
    question = json.dumps((host_name, check, command, environment))
    words = [*IN_NAMESPACES, sys.executable, "-c", ASK, question]
    done = subprocess.run(words, check=True, capture_output=True, timeout=TIME_LIMIT_S)
    answer = json.loads(done.stdout)
    assert isinstance(answer, dict)
    return answer


def test_a_remote_host_that_cannot_be_reached_fails() -> None:
    """192.0.2.1 is kept for documentation (RFC 5737), and here no route leads anywhere."""
    check = _asked("here", "port", "python a.py", MASTER_ADDR="192.0.2.1", MASTER_PORT="29500")
    assert check["status"] == "failed"
    assert "192.0.2.1:29500 cannot be reached from here" in check["sentence"]
    assert check["remedy"].endswith("nc -vz 192.0.2.1 29500")


@pytest.mark.parametrize(("nodes", "status"), [(2, "failed"), (1, "ok")])
def test_a_host_whose_own_name_is_loopback_fails_on_several_nodes(nodes: int, status: str) -> None:
    command = f"torchrun --nnodes={nodes} --nproc_per_node=2 a.py"
    check = _asked("localhost", "interface", command)
    assert check["status"] == status
    if status == "failed":
        assert "localhost resolves to a loopback address" in check["sentence"]
        assert "export GLOO_SOCKET_IFNAME=" in check["remedy"]
