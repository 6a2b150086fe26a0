"""Checks whether ranks can start and meet: variables, SLURM, address, port, network, script."""

from __future__ import annotations

import ast
import ipaddress
import shutil
import socket
import time
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, NamedTuple

import psutil

from lightning_hangcheck.doctor.check import (
    Finding,
    beginning,
    check,
    failed,
    ok,
    warning,
)
from lightning_hangcheck.doctor.launch_command import C10D_PORT, DEFAULT_PORT, split_endpoint
from lightning_hangcheck.files import NoAnswerFromStorage
from lightning_hangcheck.identity import SLURM_SHELLS, identify
from lightning_hangcheck.text.shown import seconds_in_words, show_command

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lightning_hangcheck.doctor.check import Subject

RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
OF_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
CONNECT_LIMIT_S = 3.0
LOOPBACK = "lo"
NOT_OUTWARD = (LOOPBACK, "docker", "veth", "virbr", "br-")
"""Name prefixes of interfaces that only this machine can reach, from NCCL's own list."""
LIGHTNING = ("lightning", "pytorch_lightning")
NAME_A_STRATEGY = 'Trainer(..., strategy="ddp")'
GUESSED = "leaves the strategy to be guessed from what each rank sees"


@check("launch", "the job waits for its nodes, and then ends at once", name="command")
def command_is_there(subject: Subject) -> Finding | None:
    """The program that the command starts, and its script."""
    if not subject.command:
        return None
    program, script = subject.command[0], subject.launch.script
    if shutil.which(program) is None:
        sentence = f"{program} cannot be started: no such program, or it may not be run"
        return failed(sentence, advice="correct the command")
    try:
        if script is not None:
            beginning(Path(script))
    except OSError as error:
        look = f"ls -l {quote(str(Path(script or program).parent))}"
        return failed(f"{script} cannot be read ({error.strerror})", look)
    return ok(f"{script or program} is there")


@check("launch", "a rank with a wrong number, or what takes itself for one, waits for ever")
def launch_variables(subject: Subject) -> Iterator[Finding]:
    """RANK, LOCAL_RANK, WORLD_SIZE and LOCAL_WORLD_SIZE of this shell."""
    environment = subject.environment
    set_here = {name: environment[name] for name in RANKS if name in environment}
    who = identify(set_here)
    problems = [problem.partition(";")[0] for problem in who.problems]
    pairs = (
        ("RANK", who.rank, "WORLD_SIZE", who.world_size),
        ("LOCAL_RANK", who.local_rank, "LOCAL_WORLD_SIZE", who.local_world_size),
    )
    for name, rank, of, size in pairs:
        if rank is not None and size is not None and rank >= size:
            problems.append(f"{name}={rank} cannot be with {of}={size}: ranks count from 0")
    # if this shell is a rank (srun step, or under torchrun), the variables are no leftovers
    is_rank = "TORCHELASTIC_RUN_ID" in environment or "SLURM_STEP_ID" in environment
    if not problems and subject.launch.launcher in ("python", "none") and not is_rank:
        named = [f"{name}={environment[name]}" for name in OF_TORCHRUN if name in environment]
        if named and environment.get("WORLD_SIZE", "2") != "1":
            left = f"{', '.join(named)} in this shell"
            problems.append(f"{left}: a process started from it waits for other ranks")
    yield from (failed(problem, f"unset {' '.join(RANKS)}") for problem in problems)
    if not problems:
        shown = ", ".join(f"{name}={value}" for name, value in set_here.items())
        yield ok(shown or "no variable of a launcher is set here")


@check(
    "launch",
    "Lightning takes the world size from SLURM, and waits for as many ranks",
    name="SLURM tasks",
)
def slurm_tasks(subject: Subject) -> Finding | None:
    """SLURM_NTASKS and SLURM_NTASKS_PER_NODE beside the command and its --devices."""
    environment, launch = subject.environment, subject.launch
    if "SLURM_NTASKS" not in environment or environment.get("SLURM_JOB_NAME") in SLURM_SHELLS:
        return None
    tasks = environment["SLURM_NTASKS"]
    several, in_step = tasks not in ("", "1"), "SLURM_STEP_ID" in environment
    if launch.launcher == "python" and several and not in_step:
        found = f"SLURM_NTASKS={tasks}, but the command starts one process: it waits for the others"
        return failed(found, "srun " + " ".join(subject.command))
    if launch.launcher == "slurm":
        per_node = launch.options.get("--ntasks-per-node", environment.get("SLURM_NTASKS_PER_NODE"))
        if per_node is None and several:
            found = f"SLURM_NTASKS={tasks} without SLURM_NTASKS_PER_NODE: Lightning refuses that"
            return failed(found, f"#SBATCH --ntasks-per-node={launch.local_ranks}")
        devices = launch.argument("--devices") or launch.argument("--trainer.devices")
        if devices and devices.isdecimal() and per_node != devices:
            found = f"SLURM_NTASKS_PER_NODE={per_node}, but the program is given {devices} devices"
            return failed(found, f"#SBATCH --ntasks-per-node={devices}")
    return ok(f"SLURM starts {tasks} tasks, as the command expects")


@check("launch", "a job that is cut off loses what it did since its last checkpoint")
def time_left(subject: Subject, now: float | None = None) -> Finding | None:
    """SLURM_JOB_END_TIME, and earlier runs of this command in the ledger."""
    text = subject.environment.get("SLURM_JOB_END_TIME", "")
    if not text.isdecimal():
        return None
    left = max(0.0, int(text) - (now or time.time()))
    ends = f"SLURM ends this job in {seconds_in_words(left)}"
    if left < 600.0:  # the least for start, one checkpoint and an orderly end
        job = subject.environment.get("SLURM_JOB_ID", "JOB")
        return warning(ends, f"scontrol update JobId={job} TimeLimit=+2:00:00")
    # the ledger stores commands without secrets
    words = show_command(subject.command)
    earlier = subject.ledger().runs if words else ()
    done = (past for past in reversed(earlier) if past.exit_code == 0 or past.verdict == "finished")
    run = next((past for past in done if past.command == words), None)
    if run is None:
        return ok(ends)
    estimate = f"run {run.run_id} of this command took {seconds_in_words(run.duration_s)}"
    if run.duration_s < left:
        return ok(f"{ends}; {estimate}")
    hours, minutes = divmod(round(run.duration_s * 1.2 / 60), 60)  # nodes differ by as much
    resume = "ask for more time, or save in time and resume from there"
    return warning(
        f"{estimate}, but {ends}", f"#SBATCH --time={hours}:{minutes:02d}:00", advice=resume
    )


class MeetingPoint(NamedTuple):
    """An address and a port, with the variable or option that they come from."""

    host: str
    port: int | None
    source: str


@check(
    "launch",
    "ranks that look for the first one in another place wait until the rendezvous times out",
)
def master_address(subject: Subject) -> Finding | None:
    """MASTER_ADDR, or the launcher's option in its place, as this machine resolves it."""
    point = meeting_point(subject)
    if point is None:
        return None
    try:
        found = _addresses(point.host)
    except OSError as error:
        sentence = f"{point.source} {point.host!r} does not resolve ({error.strerror})"
        return failed(sentence, "export MASTER_ADDR=$(hostname -i)")
    nodes = subject.launch.nodes
    if nodes > 1 and all(ipaddress.ip_address(address).is_loopback for address in found):
        sentence = (
            f"{point.source} {point.host} is {found[0]}, which each of the {nodes} nodes takes for "
            "itself: every node waits alone"
        )
        other = "or --rdzv-endpoint=NAME_OF_NODE_0:29500 behind torchrun"
        return failed(sentence, "export MASTER_ADDR=NAME_OF_NODE_0", advice=other)
    return ok(f"{point.host} is {', '.join(found[:3])}")


@check("launch", "ranks that meet another job's store, or a closed port, wait or fail late")
def master_port(subject: Subject) -> Finding | None:
    """The port at which ranks will meet: who listens there, or whether it answers."""
    point = meeting_point(subject)
    if point is None or not point.port:
        return None
    host, port = point.host, point.port
    try:
        found = _addresses(host)
    except OSError:
        return None  # `master_address` reports it
    own = {at.address for addresses in psutil.net_if_addrs().values() for at in addresses}
    if any(address in own or ipaddress.ip_address(address).is_loopback for address in found):
        known = psutil.net_connections("tcp")  # reads /proc/net: disturbs no process
        open_here = [each for each in known if each.status == psutil.CONN_LISTEN]
        listening = {each.laddr.port: each.pid for each in open_here if each.laddr}
        if port not in listening:
            return ok(f"port {port} is free here")
        holder, pid = "a process that may not be seen", listening[port]
        with suppress(psutil.Error):
            if pid:
                holder = f"pid {pid} ({psutil.Process(pid).name()})"
        sentence = f"port {port} is taken by {holder}: ranks would meet a stranger, or none"
        another = "torchrun --standalone, or --master-port with another one"
        return failed(sentence, advice=another)
    try:
        socket.create_connection((host, port), CONNECT_LIMIT_S).close()
    except ConnectionRefusedError:  # the first node may not have started yet
        return ok(f"{host} answers, and nobody listens at port {port} yet")
    except OSError as error:
        why = error.strerror or f"no answer within {CONNECT_LIMIT_S:g} s"
        return failed(f"{host}:{port} cannot be reached from here ({why})", f"nc -vz {host} {port}")
    return ok(f"{host}:{port} can be reached from here")


def meeting_point(subject: Subject) -> MeetingPoint | None:
    """Return where the ranks of a command will meet; None if that is not fixed in advance."""
    options, environment = subject.launch.options, subject.environment

    def at(host: str, port: str, source: str, default: int | None = DEFAULT_PORT) -> MeetingPoint:
        if port.isdecimal():  # 0 lets the kernel choose one
            default = int(port) if 0 < int(port) < 65536 else None
        return MeetingPoint(host, default, source)

    if "--standalone" in options:
        return None
    if options.get("--rdzv-endpoint"):
        return at(*split_endpoint(options["--rdzv-endpoint"]), "--rdzv-endpoint", C10D_PORT)
    if options.get("--rdzv-backend", "static") != "static":
        return at("localhost", "", "torchrun's own endpoint", C10D_PORT)
    port = options.get("--master-port") or options.get("--main-process-port", "")
    for name in ("--master-addr", "--main-process-ip"):
        if options.get(name):
            return at(options[name], port, name)
    if subject.launch.launcher == "torchrun":
        port = port or environment.get("PET_MASTER_PORT", "")
        if subject.launch.nodes == 1 and not port:
            return None  # torchrun takes a free port (torch/distributed/run.py, 2.13)
        return at("127.0.0.1", port, "torchrun's own address")
    if "MASTER_ADDR" in environment:
        port = environment.get("MASTER_PORT", "")
        return at(environment["MASTER_ADDR"], port, "MASTER_ADDR", None)
    return None


def _addresses(host: str) -> list[str]:
    known = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(row[4][0]).partition("%")[0] for row in known))


@check(
    "launch", "ranks that offer an address which others cannot reach hang in their first collective"
)
def network_interface(subject: Subject) -> Finding:
    """GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME, this host's own name, and what is up here."""
    up = sorted(name for name, state in psutil.net_if_stats().items() if state.isup)
    outward = next((name for name in up if not name.startswith(NOT_OUTWARD)), None)
    name = outward or "NAME  # one of: ip -br link"
    several_nodes = subject.launch.nodes > 1
    named = subject.environment.get("GLOO_SOCKET_IFNAME", "")
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        chosen = subject.environment.get(variable, "")
        # NCCL takes name prefixes; a leading = asks for exact names, ^ excludes
        names, exact = tuple(chosen.lstrip("^=").split(",")), chosen.lstrip("^").startswith("=")
        fits = [pattern in names if exact else pattern.startswith(names) for pattern in up]
        well = not all(fits) if chosen.startswith("^") else any(fits)
        if variable == "GLOO_SOCKET_IFNAME":
            well = set(chosen.split(",")) <= set(up)
        wrong = "" if well or not chosen else "names no interface that is up here"
        if several_nodes and chosen.lstrip("=") == LOOPBACK:
            wrong = wrong or "is loopback, where no other node can be reached"
        if wrong:
            return failed(f"{variable}={chosen} {wrong}", f"export {variable}={name}")
    if several_nodes and not named:
        with suppress(OSError):
            host = socket.gethostname()
            known = socket.getaddrinfo(host, None, socket.AF_INET)
            if all(ipaddress.ip_address(row[4][0]).is_loopback for row in known):
                sentence = (
                    f"{host} resolves to a loopback address, and gloo takes the interface that the "
                    "host's own name resolves to: other nodes cannot reach it"
                )
                return failed(sentence, f"export GLOO_SOCKET_IFNAME={name}")
    return ok(f"{named or 'no variable chooses one'}; up: {', '.join(up)}")


@check(
    "launch",
    "a rank that sees one device where the others see two trains alone, and the others wait",
    name="Trainer's strategy",
)
def trainers_strategy(subject: Subject) -> Finding | None:
    """The strategy that the script gives Lightning's Trainer, or --strategy in its arguments."""
    launch = subject.launch
    if launch.script is None or launch.ranks == 1:
        return None
    given = launch.argument("--strategy") or launch.argument("--trainer.strategy")
    if given == "auto":
        return warning(f"--strategy auto {GUESSED}", advice="write --strategy ddp")
    if given is not None:
        return ok(f"the arguments ask for {given}")
    try:
        tree = ast.parse(beginning(Path(launch.script)))
    except (OSError, NoAnswerFromStorage, SyntaxError, ValueError):
        return None  # the run itself says so at once
    asked = list(_strategies(tree, starts_ranks=launch.launcher != "python"))
    for line, strategy in asked:
        place = f"{launch.script}:{line}"
        if strategy == "auto":
            return warning(f'{place} {GUESSED} ("auto")', NAME_A_STRATEGY)
        if strategy == "":
            sentence = f'{place} names no strategy: "auto" is the default, and {GUESSED}'
            return warning(sentence, NAME_A_STRATEGY)
    if not asked or any(strategy is None for _, strategy in asked):
        return None
    return ok(", ".join(f"{launch.script}:{line} asks for {name}" for line, name in asked))


def _strategies(tree: ast.Module, *, starts_ranks: bool) -> Iterator[tuple[int, str | None]]:
    """Yield lines and strategies; empty: none is given; None: known only at run time."""
    imports = (node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom))
    modules = {getattr(node, "module", None) or node.names[0].name for node in imports}
    lightning = any(module.split(".")[0] in LIGHTNING for module in modules)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        value, devices = given.get("strategy"), given.get("devices")
        if not lightning or ast.unparse(node.func).split(".")[-1] != "Trainer":
            if isinstance(value, ast.Constant) and value.value == "auto":
                yield value.lineno, "auto"
            continue
        one_device = isinstance(devices, ast.Constant) and devices.value in (1, "1")
        if not starts_ranks and one_device and "num_nodes" not in given:
            continue  # one rank
        if value is None:
            yield node.lineno, None if None in given else ""  # the key None stands for **kwargs
        elif isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield value.lineno, value.value
        else:
            made = ast.unparse(value.func).split(".")[-1] if isinstance(value, ast.Call) else ""
            yield value.lineno, made if made.endswith("Strategy") else None
