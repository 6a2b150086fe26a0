"""`hangcheck attach --hostfile` by a real sshd, on two hosts that are namespaces."""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import msgspec
import psutil
import pytest
from processes import PROGRAMS, StartProgram, free_port, has_slept, runs, until

from lightning_hangcheck.cli.main import invoke
from lightning_hangcheck.model.verdict import Verdict

SSHD = Path("/usr/sbin/sshd")


def _no_hosts() -> str:
    """Why no host of its own can be made here; empty where one can."""
    if not SSHD.exists() or shutil.which("ssh-keygen") is None:
        return "no sshd is installed (apt-get install openssh-server)"
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return "only root can make pid namespaces"
    tried = ["unshare", "--pid", "--uts", "--fork", "--mount-proc", "true"]
    worked = subprocess.run(tried, capture_output=True, timeout=120, check=False).returncode == 0
    return "" if worked else "no pid namespace can be made here"


@pytest.mark.real
@pytest.mark.skipif(bool(_no_hosts()), reason=_no_hosts())
def test_two_hosts_by_ssh_give_one_verdict(
    program: StartProgram,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each sees its own two ranks of four; rank 1 on the first holds all of them up."""
    monkeypatch.chdir(tmp_path)
    ports = {}
    for number, name in enumerate(("node0", "node1")):
        ports[name] = port = free_port()
        config = str(_sshd_config(name, port))
        node = program("node_with_sshd.py", name, config, str(number), "2", "2")
        node.announcement()
        until(lambda port=port: _listens(port), f"sshd of {name}")
        until(lambda node=node: _stand(node.pid), f"the ranks of {name} to stand still")
    _ssh_config(ports)
    Path("hosts").write_text("node0 slots=2\nnode1 slots=2\nnode9\n")
    remote = f"HANGCHECK_IDLE_AFTER=1 {shlex.quote(sys.executable)} -m lightning_hangcheck"
    monkeypatch.setenv("HANGCHECK_REMOTE_COMMAND", remote)
    asked = ["attach", "--hostfile", "hosts", "--run-dir", "run", "--ssh", "ssh -F ssh_config"]
    assert invoke(asked) == 3, capsys.readouterr().err
    verdict = msgspec.json.decode(Path("run/verdict.json").read_bytes(), type=Verdict)
    said = capsys.readouterr()
    assert said.out.startswith("HANG  rank 1 ")
    assert (verdict.culprits, verdict.victims, verdict.world_size) == ((1,), (0, 2, 3), 4)
    assert {view.host for view in verdict.ranks} == {"node0", "node1"}
    assert "host node9: ssh does not get there (ssh: Could not resolve hostname node9" in said.err


def _stand(pid: int) -> bool:
    """Whether both ranks below a process have slept for as long as an idle rank may."""
    below = psutil.Process(pid).children(recursive=True)
    ranks = [one for one in below if runs(one, str(PROGRAMS / "starting_ranks.py"))]
    return len(ranks) == 2 and all(has_slept(one.pid, 1.0) for one in ranks)


def _sshd_config(name: str, port: int) -> Path:
    """Write a configuration that listens on loopback alone and lets one key in."""
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd wants it, whatever it is configured
    config = Path(f"{name}.sshd").absolute()
    config.write_text(f"""\
ListenAddress 127.0.0.1
Port {port}
HostKey {_key(f"{name}_key")}
AuthorizedKeysFile {_key("user_key")}.pub
StrictModes no
UsePAM no
PasswordAuthentication no
PidFile none
""")
    return config


def _ssh_config(ports: dict[str, int]) -> None:
    known = [
        f"[127.0.0.1]:{port} {Path(f'{name}_key.pub').read_text()}" for name, port in ports.items()
    ]
    Path("known").write_text("".join(known))
    hosts = [f"Host {name}\nHostName 127.0.0.1\nPort {port}\n" for name, port in ports.items()]
    trusted = f"Host *\nIdentityFile {_key('user_key')}\n"
    trusted += f"UserKnownHostsFile {Path('known').absolute()}\n"
    Path("ssh_config").write_text("".join(hosts) + trusted)


def _key(name: str) -> Path:
    if not Path(name).exists():
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", name]
        subprocess.run(command, check=True, timeout=120)
    return Path(name).absolute()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
