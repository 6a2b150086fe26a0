"""`hangcheck attach --hostfile`: hosts that are named, asked, and read as strangers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from cases import IN_BARRIER, IN_LOAD, job, rank
from hypothesis import given
from hypothesis import strategies as st

from lightning_hangcheck.attach.several_nodes import (
    HostMessage,
    Way,
    decode_message,
    encode_message,
    read_hosts,
)
from lightning_hangcheck.cli.main import invoke
from lightning_hangcheck.errors import BadUsage, UnreadableRun
from lightning_hangcheck.model.run import RankRecord
from lightning_hangcheck.model.verdict import Verdict

KUBECTL_AS_SSH = Path(__file__).parents[2] / "docs/clusters/examples/kubernetes/kubectl-as-ssh.sh"
STAND_IN = """\
#!/bin/sh
# called as ssh is: options, two dashes, the host, the command for its shell
while [ "$1" != "--" ]; do shift; done
echo "$3" > "$2.asked"
. "./$2.sh"
"""


@pytest.fixture(autouse=True)
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program in place of ssh, which does on each host what a file of its name says."""
    monkeypatch.chdir(tmp_path)
    Path("ssh").write_text(STAND_IN)
    Path("ssh").chmod(0o700)
    monkeypatch.setenv("HANGCHECK_SSH", "./ssh")
    monkeypatch.delenv("HANGCHECK_RUN_DIR", raising=False)


def hosts(**does: str) -> None:
    """Write the hostfile, and what each host does when it is asked."""
    Path("hosts").write_text("".join(f"{name} slots=2\n" for name in does))
    for name, script in does.items():
        Path(f"{name}.sh").write_text(script)


def sends(number: int, **more: object) -> str:
    """What a host does that looks at its two ranks of four: rank 3 holds the others up."""
    views = [rank(0, IN_BARRIER), rank(1, IN_BARRIER), rank(2, IN_BARRIER), rank(3, IN_LOAD)]
    here = [
        msgspec.structs.replace(view, host=f"node{number}")
        for view in views[2 * number : 2 * number + 2]
    ]
    case = job(*here, world_size=4, local_world_size=2, nnodes=2)
    records = tuple(RankRecord(rank=view.rank, host=view.host, pid=view.pid or 0) for view in here)
    message = HostMessage(case=case, ranks=records, **more)
    Path(f"node{number}.json").write_bytes(encode_message(message) + b"\n")
    return f"cat node{number}.json"


def verdict() -> Verdict:
    return msgspec.json.decode(Path("run/verdict.json").read_bytes(), type=Verdict)


def attach(*arguments: str) -> int:
    return invoke(["attach", "--hostfile", "hosts", "--run-dir", "run", *arguments])


def test_two_hosts_give_one_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    hosts(node0=f"echo Welcome; {sends(0)}", node1=sends(1, said=("it is watched",)))
    assert attach() == 3
    said = capsys.readouterr()
    assert said.out.startswith("HANG  rank 3 ")
    assert said.err == "hangcheck: host node1: it is watched\n"
    assert (verdict().culprits, verdict().victims, verdict().gaps) == ((3,), (0, 1, 2), ())
    record = json.loads(Path("run/run.json").read_text())
    assert [one["rank"] for one in record["ranks"]] == [0, 1, 2, 3]
    assert record["nodes"] == ["node0", "node1"]
    assert Path("node0.asked").read_text() == "hangcheck attach --json-case\n"


def test_what_the_remote_side_is_asked(capsys: pytest.CaptureFixture[str]) -> None:
    hosts(node0=sends(0), node1=sends(1))
    assert attach("--remote-command", ". /env/bin/activate; hangcheck", "--locals") == 3
    asked = ". /env/bin/activate; hangcheck attach --json-case --locals\n"
    assert Path("node1.asked").read_text() == asked


@pytest.mark.parametrize(
    ("does", "sentence"),
    [
        (
            "echo 'Permission denied (publickey).' >&2; exit 255",
            "ssh does not get there (Permission denied (publickey).); make this work: "
            "./ssh -o BatchMode=yes node1 true",
        ),
        (
            "echo 'sh: 1: hangcheck: not found' >&2; exit 127",
            "hangcheck cannot be started there (sh: 1: hangcheck: not found); install "
            "lightning-hangcheck there, or say where it is: "
            "--remote-command /path/to/env/bin/hangcheck",
        ),
        (
            "echo 'hangcheck: no job runs here; name one of its processes' >&2; exit 4",
            "no job runs here; name one of its processes",
        ),
        ("exec yes", "it sent more than 32 MiB, so it was left; try it by hand, or give it "),
        ("exec sleep 1000", "no answer within 2 s, so it was left; try it by hand, or give it "),
        ("echo '[1]'", "what it sent cannot be read: Expected `object`, got `array`; install "),
    ],
)
def test_a_host_that_tells_nothing_is_a_gap_with_its_reason(
    does: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The verdict on the others stands: none of them is called gone."""
    hosts(node0=sends(0), node1=does)
    assert attach("--host-timeout", "2") == 0
    said = capsys.readouterr()
    assert f"hangcheck: host node1: {sentence}" in said.err
    assert said.err.count("\n") == 1
    assert "ranks 2-3" in {gap.what for gap in verdict().gaps}
    assert "host node1" in {gap.what for gap in verdict().gaps}
    assert verdict().verdict not in ("hang", "dead", "crashed")


def test_no_host_with_a_job(capsys: pytest.CaptureFixture[str]) -> None:
    hosts(**{f"node{number}": "exit 255" for number in range(5)})
    assert attach() == 4
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert "none of 5 hosts shows a job (host node0: ssh does not get there " in said.err
    assert "and 2 more" in said.err
    assert not Path("run").exists()


def test_a_hang_that_a_sidecar_there_has_told_counts() -> None:
    hosts(node0=sends(0, hang_stands=True))
    assert attach() == 3


KUBECTL = """\
#!/bin/sh
# called as the script calls it: exec POD --container=NAME -- sh -c LINE
[ "$1 $3 $4 $5 $6" = "exec --container=pytorch -- sh -c" ] || exit 9
echo "$7" > "asked-${2#pod/}"
cat "${2#pod/}.json"
"""


def test_pods_that_kubectl_names_are_asked_by_the_documented_script(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole way: what ``kubectl get pods -o name`` prints, and the example in place of ssh."""
    for number in (0, 1):
        sends(number)
        Path(f"node{number}.json").rename(f"train-node-0-{number}-x7zr2.json")
    Path("bin").mkdir()
    Path("bin/kubectl").write_text(KUBECTL)
    Path("bin/kubectl").chmod(0o700)
    monkeypatch.setenv("PATH", f"{Path('bin').absolute()}:{os.environ['PATH']}")
    monkeypatch.delenv("DEBUG_IMAGE", raising=False)
    Path("printed").write_text("pod/train-node-0-0-x7zr2\npod/train-node-0-1-x7zr2\n")
    with Path("printed").open() as file:
        monkeypatch.setattr(sys, "stdin", file)
        asked = ["--ssh", f"bash {KUBECTL_AS_SSH}", "--run-dir", "run"]
        assert invoke(["attach", "--hostfile", "-", *asked]) == 3
    assert capsys.readouterr().err == ""
    assert (verdict().culprits, verdict().victims, verdict().gaps) == ((3,), (0, 1, 2), ())
    for number in (0, 1):
        words = Path(f"asked-train-node-0-{number}-x7zr2").read_text()
        assert words == "hangcheck attach --json-case\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--hostfile", "nowhere"], "--hostfile nowhere cannot be read (No such file or dir"),
        (["--hostfile", "hosts", "--pid", "1"], "--hostfile and --pid cannot be given together"),
        (["--hostfile", "hosts", "--json-case"], "--json-case and --hostfile cannot be given"),
        (["--hostfile", "hosts", "--ssh", "'"], "is no command; write for example --ssh"),
        (["--hostfile", "hosts", "--ssh", "/no/ssh"], "/no/ssh cannot be started (No such file"),
    ],
)
def test_what_cannot_be_asked_is_said_in_one_line(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts(node0="exit 255")
    assert invoke(["attach", *arguments]) in (2, 4)
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("line", ["-oProxyCommand=sh", "ada@-oProxyCommand=sh", "$(id)", "pod/-x"])
def test_a_line_that_is_no_host_is_refused_with_its_number(line: str) -> None:
    """ssh would take a leading dash for an option."""
    with pytest.raises(BadUsage, match="line 2 of hosts names no host"):
        read_hosts(f"node0\n{line}\n", "hosts")


CASE = job(rank(0, IN_BARRIER), rank(1, IN_LOAD))
SENT = HostMessage(case=CASE, said=("it is watched",))


def test_a_message_is_one_line_that_does_nothing_to_a_terminal() -> None:
    odd = msgspec.structs.replace(SENT, said=("\x1b[2J\x9b31m\u202e\n",))
    line = encode_message(odd)
    assert line.decode().isprintable()
    assert decode_message(line) == odd


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


@pytest.mark.skipif(shutil.which("ssh") is None, reason="no ssh is installed")
def test_ssh_knows_the_options_that_it_is_given() -> None:
    way = Way(ssh=("ssh",), remote_command="true", limit_s=60.0, local_values=False)
    asked = way.command("ada@node0")
    words = [asked[0], "-G", *asked[1 : asked.index("--") + 2]]
    told = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True).stdout
    assert {"user ada", "hostname node0", "batchmode yes", "requesttty false"} <= {
        *told.splitlines()
    }
