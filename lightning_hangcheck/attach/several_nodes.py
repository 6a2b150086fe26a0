"""Joins what several nodes saw into one verdict.

`hangcheck merge` joins the run folders of nodes; `hangcheck attach --hostfile` looks at a job on
every host.
"""

from __future__ import annotations

import os
import re
import shlex
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from subprocess import CompletedProcess
from tempfile import TemporaryFile
from threading import Event
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from lightning_hangcheck import log, rundir
from lightning_hangcheck.errors import BadUsage, NoJobFound, UnreadableRun
from lightning_hangcheck.files import EVIDENCE_BYTES, decode, read_fact, write_atomically
from lightning_hangcheck.judge import judge
from lightning_hangcheck.judge.joining import NodeCase, merge_cases
from lightning_hangcheck.look.programs import ChildLate, run_to_its_end
from lightning_hangcheck.model.case import Case
from lightning_hangcheck.model.codec import encode
from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.model.run import RankRecord, Round, RunRecord
from lightning_hangcheck.observe.run_record import save_run
from lightning_hangcheck.report import journals
from lightning_hangcheck.text.shown import one_line, visible, visible_json
from lightning_hangcheck.time_limit import PART_LIMIT_S, READING_LIMIT_S, NoAnswer, within
from lightning_hangcheck.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lightning_hangcheck.model.verdict import EvidenceItem, Verdict


MOST_JOURNALS = 1_024


class Merged(NamedTuple):
    """The result of several nodes; those that were ``left_out`` are also gaps of the case."""

    case: Case
    verdict: Verdict
    kept: rundir.RunFolder | None
    left_out: tuple[Gap, ...]


def _judged(
    case: Case,
    left_out: Sequence[Gap],
    ranks: Iterable[RankRecord],
    folder: rundir.RunFolder,
    rounds: tuple[Round, ...] = (),
    also: Sequence[EvidenceItem] = (),
) -> Merged:
    """Judge the case of several nodes, and save it; ``also`` comes before other evidence."""
    case = replace(case, gaps=(*case.gaps, *left_out))
    verdict = judge(case)
    verdict = replace(verdict, evidence=(*also, *verdict.evidence))
    kept = save_run(case, verdict, tuple(ranks), folder, rounds)
    return Merged(case, verdict, kept, tuple(left_out))


def merge_runs(
    named: Sequence[str], merged: rundir.RunFolder, also: Sequence[EvidenceItem] = ()
) -> Merged:
    """Join what `attach` or `run` wrote on several nodes into one verdict, and save it.

    A folder that all nodes were given contains the others. ``also`` comes before other evidence.
    BadUsage if a folder is named twice, UnreadableRun if none can be used, UsedRunFolder if the
    target folder holds another run.
    """
    paths = [Path(name).resolve() for name in named]
    for number, name in enumerate(named):
        if paths[number] in paths[:number]:
            raise BadUsage(f"{name} is named twice", "name the run folder of each node once")
    roots = [rundir.find_run_folder(name) for name in named]
    below: list[rundir.RunFolder] = []
    for root in roots:
        with suppress(NoAnswer):  # reported below, when it is read
            below += within(PART_LIMIT_S, partial(journals.folders_of_nodes, root))
    folders = list(dict.fromkeys([*roots, *below]))
    run_records: dict[rundir.RunFolder, RunRecord | None] = dict.fromkeys(folders)
    for folder in folders:  # who the ranks were; without run.json the verdict still stands
        with suppress(NoAnswer):
            file = folder.run_file
            run_records[folder] = within(
                PART_LIMIT_S, partial(read_fact, file, RunRecord, EVIDENCE_BYTES)
            )
    records = [record for record in run_records.values() if record is not None]
    rounds = joined_rounds(records)
    nodes: dict[rundir.RunFolder, NodeCase] = {}
    refused: list[UnreadableRun] = []
    left_out: list[Gap] = []
    for folder in run_records:
        empty = False
        try:
            case, gaps = within(READING_LIMIT_S, partial(journals.newest_case, folder))
            if case is not None:
                case = replace(case, gaps=(*case.gaps, *gaps))
                nodes[folder] = NodeCase(str(folder.path), case)
                continue
            empty = True
            refusal = UnreadableRun(
                f"{folder.path} holds no evidence",
                "name a folder that hangcheck attach wrote, or hangcheck run after a verdict",
            )
        except UnreadableRun as error:
            refusal = error
        except NoAnswer as error:  # a dead disk must not cost other nodes' evidence
            why = f"{folder.path} does not answer ({error})"
            refusal = UnreadableRun(why, "try again, or leave it")
        refused.append(refusal)
        # a healthy node may leave a folder without evidence that the user did not name, and the
        # folder that all nodes were given may hold theirs alone
        if not (empty and (folder in below or folder.path in {node.path.parent for node in below})):
            what, why = f"run folder {folder.path}", str(refusal.args[0])
            left_out.append(Gap(what, None, why, "saved_evidence", refusal.remedy))
    if not nodes:
        first, more = refused[0], len(refused) - 1
        rest = f" (and none of {more} more can be used)" if more else ""
        raise UnreadableRun(f"{first.args[0]}{rest}", first.remedy)
    newest = rounds[-1] if rounds else Round()
    of_files = sorted(
        (node for node in nodes if nodes[node].case.left is not None),
        key=lambda node: nodes[node].case.taken_at,
    )
    for folder in of_files if len(of_files) < len(nodes) else of_files[:-1]:
        del nodes[folder]
        what, why = f"run folder {folder.path}", "it was made from other files, not by a watch"
        remedy = "name these files: hangcheck postmortem PATH..."
        left_out.append(Gap(what, None, why, "saved_evidence", remedy))
    cases = list(nodes.values())
    before = [node for node in nodes if _is_before(nodes[node], cases, run_records[node], newest)]
    before = before if len(before) < len(cases) else []
    joined = merge_cases([nodes[node] for node in nodes if node not in before], merged.run_id)
    history = [
        Gap(
            f"run folder {folder.path}",
            None,
            f"its evidence is of round {nodes[folder].case.run.round}, and round {newest.number} "
            "has begun since: it counts as history only",
            "saved_evidence",
        )
        for folder in before
    ]
    case = replace(joined, gaps=(*joined.gaps, *history), seen_in="files")
    ranks = (rank for record in records for rank in record.ranks)
    found = _judged(case, left_out, ranks, merged, rounds, also)
    kept = found.kept

    def keep_journals(into: Path) -> None:
        """Join each rank's journals, which may lie in several nodes' folders."""
        for name, paths in list(journals.journals_in(folders).items())[:MOST_JOURNALS]:
            entries, _ = journals.read_rank(paths)
            lines = b"".join(msgspec.json.encode(entry) + b"\n" for entry in entries)
            write_atomically(into / f"{name}.jsonl", lines)

    if kept is not None:
        try:
            within(READING_LIMIT_S, partial(keep_journals, kept.journals))
        except (OSError, NoAnswer) as error:
            log.once("journals", f"not all journals were joined in {kept.path} ({error})")
    return found


def joined_rounds(records: Sequence[RunRecord]) -> tuple[Round, ...]:
    """Join the records that a job's nodes keep of its rounds.

    The end of a round comes from the first node that knows a culprit, else from the first node.
    """
    found: dict[int, Round] = {}
    for other in (earlier_round for record in records for earlier_round in record.rounds):
        known = found.get(other.number, other)
        places = {place.rank: place for place in (*other.ranks, *known.ranks)}
        ended = known if known.culprits or not other.culprits else other
        ranks = tuple(places[rank] for rank in sorted(places))
        found[other.number] = replace(ended, ranks=ranks)
    return tuple(found[number] for number in sorted(found))


def _is_before(
    node: NodeCase, nodes: Sequence[NodeCase], record: RunRecord | None, newest: Round
) -> bool:
    """Whether a node's evidence is of an earlier round: ranks of two rounds are never mixed.

    If the node took part in the newest round, its own clock tells. Else the round's number tells,
    if the nodes met and agreed on it. Other nodes may count rounds differently: then all ranks of
    this node must have moved to other nodes, or no longer exist.
    """
    if node.case.run.round >= newest.number:
        return False
    own = {} if record is None else {seen.number: seen for seen in record.rounds}
    if newest.number in own:
        return node.case.taken_at < own[newest.number].started_at
    if record is not None and record.meeting:
        return True
    later = [other.case for other in nodes if other.case.run.round > node.case.run.round]
    elsewhere = {view.rank for case in later for view in case.ranks if view.pid is not None}
    world_size = max((case.run.world_size for case in later), default=0)
    ours = [view.rank for view in node.case.ranks if view.pid is not None]
    return bool(later) and all(rank in elsewhere or rank >= world_size for rank in ours)


# Looks on every host of a job

HOST = re.compile(
    r"(?:[\w.][\w.-]*@)?(?:[A-Za-z0-9_.][\w.-]*|\[?[0-9a-fA-F:.]+(?:%\w+)?\]?)"
    r"|[a-z][a-z0-9.]*/[a-z0-9][a-z0-9.-]*"
)
"""``[user@]name``, an address, or ``pod/name`` as ``kubectl get -o name`` prints it.

No part begins with a dash, which ssh would take for an option.
"""
SLOTS = re.compile(r"([^:]+):\d+")
"""Hydra and Intel's MPI write ``host:8`` where others write ``host slots=8``."""
LONGEST_SHOWN, LONGEST_SENTENCE = 60, 300
MOST_OUTPUT = 32 * 1024 * 1024
"""Bytes: eight stuck ranks with their workers need under one million."""
OPTIONS = {
    "BatchMode": "yes",  # no password prompt: nobody could answer it
    "ConnectTimeout": "10",
    "ServerAliveInterval": "5",
    "ServerAliveCountMax": "3",
    "ForwardAgent": "no",
    "ForwardX11": "no",
    "ClearAllForwardings": "yes",
    "ControlMaster": "no",  # a new master would keep our pipes; an existing one serves
    "PermitLocalCommand": "no",
}
"""ssh_config(5): what one look needs, whatever the user's own configuration says."""
NO_SSH, CANNOT_START = 255, (127, 126)
OURS = "hangcheck: "
SAME_VERSION = "install the same lightning-hangcheck on all hosts"
MOST_NAMED = 3


def read_hosts(text: str, name: str) -> tuple[str, ...]:
    """Read the hosts of a hostfile, each once, in its order; ``name`` is the file's name.

    Text after a host (``slots=8``) and comments after ``#`` are ignored. BadUsage if a line, or the
    file, names no host.
    """
    hosts: dict[str, None] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        slots = SLOTS.fullmatch(words[0])
        host = slots[1] if slots else words[0]
        if not HOST.fullmatch(host):
            raise BadUsage(
                f"line {number} of {name} names no host: {visible(host[:LONGEST_SHOWN])!r}",
                "write one host a line, for example: node0 slots=8",
            )
        hosts[host] = None
    if not hosts:
        raise BadUsage(f"{name} names no host", "write one host a line, for example: node0 slots=8")
    return tuple(hosts)


class HostMessage(Struct, frozen=True, kw_only=True):
    """The result of one look at one host.

    ``ranks`` are for run.json; ``said``: sentences that `hangcheck attach` would print on stderr
    there; ``hang_stands``: a sidecar there reported a hang that still holds.
    """

    schema_version: int = 1
    version: str = __version__
    case: Case
    ranks: tuple[RankRecord, ...] = ()
    said: tuple[str, ...] = ()
    hang_stands: bool = False


def encode_message(message: HostMessage) -> bytes:
    """Encode the message as one line, without the line's end."""
    return visible_json(encode(message))


def decode_message(output: bytes) -> HostMessage:
    """Decode the last line of a host's output; a login shell may print some before it."""
    try:
        return decode(output.rstrip().rsplit(b"\n", 1)[-1], HostMessage, "what it sent")
    except UnicodeDecodeError as error:
        raise UnreadableRun(f"what it sent is no text ({error})", SAME_VERSION) from error
    except UnreadableRun as error:
        raise UnreadableRun(str(error.args[0]), SAME_VERSION) from error


class Way(Struct, frozen=True, kw_only=True):
    """How hosts are asked: ssh with its options, then a command line for the host's shell."""

    ssh: tuple[str, ...]
    remote_command: str
    limit_s: float
    local_values: bool

    def command(self, host: str) -> list[str]:
        """Return the command line that asks one host."""
        options = [part for name, value in OPTIONS.items() for part in ("-o", f"{name}={value}")]
        asked = f"{self.remote_command} attach --json-case{' --locals' * self.local_values}"
        return [*self.ssh, "-T", *options, "--", host, asked]


def read_ssh(text: str) -> tuple[str, ...]:
    """Split a command and its options as a shell would; BadUsage if there is no command."""
    try:
        words = tuple(shlex.split(text))
    except ValueError:
        words = ()
    if not words:
        raise BadUsage(f"--ssh {text!r} is no command", "write for example --ssh 'ssh -p 2222'")
    return words


def answer_of(command: Sequence[str], limit_s: float, given_up: Event) -> CompletedProcess[bytes]:
    """Run a program to its end, with no input; its process group ends with it.

    It writes to files, so a background helper that keeps its outputs open causes no wait. OSError
    if it cannot be started; ChildLate if it was killed or wrote too much, with the reason.
    """
    with TemporaryFile() as output, TemporaryFile() as complaint:
        files = output.fileno(), complaint.fileno()
        code = run_to_its_end(
            command, limit_s, os.environ, *files, most=MOST_OUTPUT + 1, given_up=given_up
        )
        if max(os.fstat(file).st_size for file in files) > MOST_OUTPUT:
            raise ChildLate(f"it sent more than {MOST_OUTPUT >> 20} MiB")
        output.seek(0)
        complaint.seek(0)
        return CompletedProcess(command, code, output.read(), complaint.read())


def visit(host: str, way: Way, given_up: Event) -> HostMessage | Gap:
    """Ask one host, within its time limit; a gap says why there is no answer."""
    program, remedy = way.remote_command, ""
    try:
        answer = answer_of(way.command(host), way.limit_s, given_up)
        if not answer.returncode:
            return decode_message(answer.stdout)
    except OSError as error:
        why = f"{way.ssh[0]} cannot be started ({error.strerror})"
        remedy = "install it, or name another way there: --ssh CMD"
    except ChildLate as error:
        why, remedy = f"{error}, so it was left", "try it by hand, or give it --host-timeout"
    except UnreadableRun as error:
        why, remedy = str(error.args[0]), error.remedy
    else:
        lines = answer.stderr.decode(errors="replace").strip().splitlines()
        last = one_line(lines[-1])[:LONGEST_SENTENCE] if lines else "it said nothing"
        why = f"{program} ended there with {answer.returncode} ({last})"
        if answer.returncode == NO_SSH:
            why = f"ssh does not get there ({last})"
            by_hand = shlex.join([*way.ssh, "-o", "BatchMode=yes", host, "true"])
            remedy = f"make this work: {by_hand}"
        elif answer.returncode in CANNOT_START:
            why = f"{program} cannot be started there ({last})"
            remedy = (
                "install lightning-hangcheck there, or say where it is: "
                "--remote-command /path/to/env/bin/hangcheck"
            )
        elif answer.returncode == NoJobFound.exit_code or last.startswith(OURS):
            why = last.removeprefix(OURS)
    return Gap(f"host {host}", None, one_line(why)[:LONGEST_SENTENCE], "other_nodes", remedy)


def attach_everywhere(
    hosts: Sequence[str], way: Way, folder: rundir.RunFolder, at_once: int
) -> tuple[Merged, dict[str, HostMessage]]:
    """Look at a job on all of its hosts, each named once; return one verdict, and all messages.

    NoJobFound if no host reported a job, UsedRunFolder if the folder holds another run.
    """
    given_up = Event()
    with ThreadPoolExecutor(min(at_once, len(hosts))) as pool:
        try:
            asked = pool.map(lambda host: visit(host, way, given_up), hosts)
            answers = dict(zip(hosts, asked, strict=True))
        finally:
            given_up.set()  # after Ctrl-C nobody waits for the rest; else all have answered
    messages = {
        host: message for host, message in answers.items() if isinstance(message, HostMessage)
    }
    silent = tuple(gap for gap in answers.values() if isinstance(gap, Gap))
    if not messages:
        named = [f"{gap.what}: {gap.why}" for gap in silent[:MOST_NAMED]]
        more = len(silent) - len(named)
        rest = [f"and {more} more"] if more else []
        raise NoJobFound(
            f"none of {len(silent)} hosts shows a job ({'; '.join([*named, *rest])})",
            silent[0].remedy or "name the hosts on which its ranks run",
        )
    merged = merge_cases(
        [NodeCase(host, message.case) for host, message in messages.items()], folder.run_id
    )
    ranks = (rank for message in messages.values() for rank in message.ranks)
    return _judged(merged, silent, ranks, folder), messages
