"""Where the ranks meet first: does the address resolve, is the port free or reachable?"""

from __future__ import annotations

import ipaddress
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import psutil

from lightning_hangcheck.doctor.check import Check
from lightning_hangcheck.doctor.launching.launch import split_endpoint

if TYPE_CHECKING:
    from lightning_hangcheck.doctor.subject import Subject

ADDRESS = "master address"
PORT = "master port"
TORCHRUN_PORT = 29500  # torch/distributed/run.py, --master-port and the endpoint's default
RENDEZVOUS_PORT = 29400  # DEFAULT_PORT of torch.distributed.elastic.rendezvous.utils
CONNECT_LIMIT_S = 3.0


class MeetingPoint(NamedTuple):
    """An address and a port, and which variable or option says so."""

    host: str
    port: int | None
    source: str


def address_resolves(subject: Subject) -> tuple[Check, ...]:
    """Resolve the master address; on several nodes it must not be one of this machine only.

    Args:
        subject: The run.
    """
    point = meeting_point(subject)
    if point is None:
        return ()
    try:
        found = _addresses(point.host)
    except OSError as error:
        sentence = f"{point.source} {point.host!r} does not resolve ({error.strerror})"
        return (Check(ADDRESS, "failed", sentence, "export MASTER_ADDR=$(hostname -i)"),)
    nodes = subject.launch.nodes
    if nodes > 1 and all(ipaddress.ip_address(one).is_loopback for one in found):
        sentence = (
            f"{point.source} {point.host} is {found[0]}, which each of the {nodes} nodes takes for "
            "itself: every node waits alone"
        )
        remedy = "export MASTER_ADDR=NAME_OF_NODE_0, or --rdzv-endpoint=NAME_OF_NODE_0:29500"
        return (Check(ADDRESS, "failed", sentence, remedy),)
    return (Check(ADDRESS, "ok", f"{point.host} is {', '.join(found[:3])}"),)


def port_usable(subject: Subject) -> tuple[Check, ...]:
    """On the node that the address names the port must be free, on others it must answer.

    Where it does not answer from elsewhere, the first node may simply not have started yet.

    Args:
        subject: The run.
    """
    point = meeting_point(subject)
    if point is None or not point.port:
        return ()
    try:
        here = any(map(_is_here, _addresses(point.host)))
    except OSError:
        return ()  # the address is what fails
    return (_free_here(point.port) if here else _reachable(point.host, point.port),)


def meeting_point(subject: Subject) -> MeetingPoint | None:
    """Find where the ranks of a command will meet; None where nothing fixes it beforehand."""
    options, environment = subject.launch.options, subject.environment
    if "--standalone" in options:
        return None
    if options.get("--rdzv-endpoint"):
        host, port = split_endpoint(options["--rdzv-endpoint"])
        return MeetingPoint(host, _port(port, RENDEZVOUS_PORT), "--rdzv-endpoint")
    if options.get("--rdzv-backend", "static") != "static":
        return MeetingPoint("localhost", RENDEZVOUS_PORT, "torchrun's own endpoint")
    port = options.get("--master-port") or options.get("--main-process-port", "")
    for name in ("--master-addr", "--main-process-ip"):
        if options.get(name):
            return MeetingPoint(options[name], _port(port, TORCHRUN_PORT), name)
    if subject.launch.launcher == "torchrun":
        port = port or environment.get("PET_MASTER_PORT", "")
        if subject.launch.nodes == 1 and not port:
            return None  # torchrun takes a port that is free (torch/distributed/run.py, 2.13)
        return MeetingPoint("127.0.0.1", _port(port, TORCHRUN_PORT), "torchrun's own address")
    if "MASTER_ADDR" in environment:
        port = environment.get("MASTER_PORT", "")
        return MeetingPoint(environment["MASTER_ADDR"], _port(port), "MASTER_ADDR")
    return None


def _port(text: str, default: int | None = None) -> int | None:
    """The port that is fixed; None of 0, which lets the kernel choose one."""
    if not text.isdecimal():
        return default
    return int(text) if 0 < int(text) < 65536 else None


def _addresses(host: str) -> list[str]:
    known = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(one[4][0]).partition("%")[0] for one in known))


def _is_here(address: str) -> bool:
    """Whether it is an address of this machine: only there a socket can be bound to it."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as trial:
        try:
            trial.bind((address, 0))
        except OSError:
            return False
    return True


def _free_here(port: int) -> Check:
    holder = _listener(port)
    if holder is None:
        return Check(PORT, "ok", f"port {port} is free here")
    sentence = f"port {port} is taken by {holder}: ranks would meet a stranger, or none"
    return Check(
        PORT, "failed", sentence, "torchrun --standalone, or --master-port with another one"
    )


def _listener(port: int) -> str | None:
    """Who listens there; by /proc/net alone, so that nothing is opened and nobody is disturbed."""
    for one in psutil.net_connections("tcp"):
        if one.status == psutil.CONN_LISTEN and one.laddr and one.laddr.port == port:
            with suppress(psutil.Error):
                if one.pid:
                    return f"pid {one.pid} ({psutil.Process(one.pid).name()})"
            return "a process that may not be seen"
    return None


def _reachable(host: str, port: int) -> Check:
    try:
        socket.create_connection((host, port), CONNECT_LIMIT_S).close()
    except ConnectionRefusedError:
        return Check(PORT, "ok", f"{host} answers, and nobody listens at port {port} yet")
    except OSError as error:
        why = error.strerror or f"no answer within {CONNECT_LIMIT_S:g} s"
        sentence = f"{host}:{port} cannot be reached from here ({why})"
        return Check(PORT, "failed", sentence, f"see what is in the way: nc -vz {host} {port}")
    return Check(PORT, "ok", f"{host}:{port} can be reached from here")
