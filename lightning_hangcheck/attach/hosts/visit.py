"""One host asked by ssh: its message, or one sentence why there is none."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from msgspec import Struct

from lightning_hangcheck.attach.hosts.answer import NoAnswer, answer_of
from lightning_hangcheck.attach.hosts.message import HostMessage, decode_message
from lightning_hangcheck.errors import BadUsage, NoJobFound, UnreadableRun
from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.text.plain_text import one_line

if TYPE_CHECKING:
    import threading

    from lightning_hangcheck.attach.hosts.answer import Answer

SSH = "ssh"
REMOTE_COMMAND = "hangcheck"
HOST_TIMEOUT_S = 60.0
"""A look takes three seconds, and thirty where no process answers."""
CONNECT_S = 10
OPTIONS = {
    "BatchMode": "yes",  # asks for no password: nobody is there to type it
    "ConnectTimeout": str(CONNECT_S),
    "ServerAliveInterval": "5",
    "ServerAliveCountMax": "3",
    "ForwardAgent": "no",
    "ForwardX11": "no",
    "ClearAllForwardings": "yes",
    "ControlMaster": "no",  # a master that stays would keep our pipes; one that is there serves
    "PermitLocalCommand": "no",
}
"""ssh_config(5): what one look needs, whatever the user's own configuration asks for otherwise."""
NO_SSH, NOT_FOUND, NOT_EXECUTABLE = 255, 127, 126
LONGEST_SENTENCE = 300
OURS = "hangcheck: "


class Way(Struct, frozen=True, kw_only=True):
    """How hosts are asked.

    Attributes:
        ssh: The program and its first options.
        remote_command: What starts hangcheck there, a line for the host's shell.
        limit_s: Seconds for one host.
        local_values: Whether to ask for local variables too.
    """

    ssh: tuple[str, ...] = (SSH,)
    remote_command: str = REMOTE_COMMAND
    limit_s: float = HOST_TIMEOUT_S
    local_values: bool = False

    def command(self, host: str) -> list[str]:
        """Return the command line that asks a host."""
        options = [part for name, value in OPTIONS.items() for part in ("-o", f"{name}={value}")]
        remote = f"{self.remote_command} attach --json-case"
        asked = f"{remote} --locals" if self.local_values else remote
        return [*self.ssh, "-T", *options, "--", host, asked]


def read_ssh(text: str) -> tuple[str, ...]:
    """Read a command and its options, as a shell would split them.

    Raises:
        BadUsage: It is none.
    """
    try:
        words = tuple(shlex.split(text))
    except ValueError:
        words = ()
    if not words:
        raise BadUsage(f"--ssh {text!r} is no command", "write for example --ssh 'ssh -p 2222'")
    return words


def visit(host: str, way: Way, given_up: threading.Event) -> HostMessage | Gap:
    """Ask one host, within its time limit.

    Args:
        host: As the hostfile names it.
        way: How.
        given_up: Once set, the answer is not waited for.
    """
    try:
        answer = answer_of(way.command(host), way.limit_s, given_up)
    except OSError as error:
        return gap(host, f"{way.ssh[0]} cannot be started ({error.strerror})", "install it")
    except NoAnswer as error:
        return gap(host, f"{error}, so it was left", "try it by hand, or give it --host-timeout")
    if answer.exit_code:
        return _refused(host, way, answer)
    try:
        return decode_message(answer.output)
    except UnreadableRun as error:
        return gap(host, str(error.args[0]), error.remedy)


def gap(host: str, why: str, remedy: str = "") -> Gap:
    """Say why a host tells nothing."""
    return Gap(f"host {host}", None, one_line(why)[:LONGEST_SENTENCE], "other_nodes", remedy)


def _refused(host: str, way: Way, answer: Answer) -> Gap:
    last = _last_line(answer.complaint)
    if answer.exit_code == NO_SSH:
        by_hand = shlex.join([*way.ssh, "-o", "BatchMode=yes", host, "true"])
        return gap(host, f"ssh does not get there ({last})", f"make this work: {by_hand}")
    if answer.exit_code in (NOT_FOUND, NOT_EXECUTABLE):
        return gap(
            host,
            f"{way.remote_command} cannot be started there ({last})",
            "install lightning-hangcheck there, or say where it is: "
            "--remote-command /path/to/env/bin/hangcheck",
        )
    if answer.exit_code == NoJobFound.exit_code or last.startswith(OURS):
        return gap(host, last.removeprefix(OURS))
    return gap(host, f"{way.remote_command} ended there with {answer.exit_code} ({last})")


def _last_line(complaint: bytes) -> str:
    lines = complaint.decode(errors="replace").strip().splitlines()
    return one_line(lines[-1])[:LONGEST_SENTENCE] if lines else "it said nothing"
