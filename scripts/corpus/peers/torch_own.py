"""torch's own means, as far as they need no change to the script.

Switched on: a timeout of the process group of 25 s (the healthy cases are silent for up to 20 s),
TORCH_DISTRIBUTED_DEBUG=DETAIL, PYTHONFAULTHANDLER, and the debug server of torch.distributed.debug,
which dumps the stacks of all ranks every 5 s. DETAIL ends every program that wraps a model in
DistributedDataParallel on gloo by a segmentation fault, also a healthy one, so those get INFO.

What counts as what, besides torchrun's forms:

* alarm: a collective that timed out, `failed to pass monitoredBarrier`, a mismatch that DETAIL
  found. A stack dump is none: the server writes the same for a healthy job.
* culprits: the ranks that `failed to pass monitoredBarrier`, or rank 0 where the others are sent to
  its log; the two ranks of a mismatch; the other rank in the store's key (`keys: .../0/1`) that the
  failed rank waited for; torchrun's root cause counts as well.
* cause: DETAIL's mismatch stands for `collective_mismatch` and for `rank_diverged`, a rank that
  failed to pass the barrier or never wrote its key for `rank_stalled`.
* line: the newest stack dump of the debug server, or a traceback, shows the function in any rank.

The flight record is on, as by default, and not scored: torch writes it on timeouts of NCCL only,
and on gloo its analyzer says "Not all ranks joining" of collectives that all ranks have finished.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from corpus.peers import torchrun as plain
from corpus.peers.peer import Peer, torchrun
from corpus.peers.transcript import Said, Transcript, first_alarm, heard_causes

SITE = Path(__file__).parent / "torch_site"
TIMEOUT_S = 25
WRAPS_A_MODEL = re.compile(r"DistributedDataParallel|Trainer\(|Accelerator\(")
NOT_PASSED = re.compile(r"Ranks ([\d, ]+) failed to pass monitoredBarrier")
RANK_NOT_PASSED = re.compile(r"Rank (\d+) failed to pass monitoredBarrier")
RANK_0_TO_ASK = re.compile(r"monitoredBarrier, but received errors .* from rank 0")
TIMED_OUT = re.compile(r"Timed out waiting|[Tt]imed out after|wait timeout after|Wait timeout")
KEY_WAITED_FOR = re.compile(r"wait timeout after .*/(\d+)/(\d+)$")
MISMATCH = re.compile(r"mismatch between collectives .* Rank (\d+) is .*, but Rank (\d+) is ")
ALARMS = (NOT_PASSED, RANK_NOT_PASSED, RANK_0_TO_ASK, TIMED_OUT, MISMATCH, *plain.ALARMS)
MEANINGS = (
    *plain.MEANINGS,
    (MISMATCH, "collective_mismatch"),
    (MISMATCH, "rank_diverged"),
    (NOT_PASSED, "rank_stalled"),
    (RANK_NOT_PASSED, "rank_stalled"),
    (RANK_0_TO_ASK, "rank_stalled"),
    (KEY_WAITED_FOR, "rank_stalled"),
)


def hear(transcript: Transcript) -> Said:
    """Understand what torch printed."""
    alarm = first_alarm(transcript, ALARMS)
    if alarm is None:
        return Said()
    return Said(
        at_s=alarm.at_s,
        culprits=_named(transcript),
        causes=heard_causes(transcript, MEANINGS),
        words=alarm.text,
    )


def _named(transcript: Transcript) -> list[list[int]]:
    answers = [
        sorted(int(rank) for rank in match.group(1).split(","))
        for _, match in transcript.found(NOT_PASSED)
    ]
    answers += [sorted(map(int, match.groups())) for _, match in transcript.found(MISMATCH)]
    one_by_one = {int(match.group(1)) for _, match in transcript.found(RANK_NOT_PASSED)}
    if one_by_one:
        answers.append(sorted(one_by_one))
    elif transcript.says(RANK_0_TO_ASK):
        answers.append([0])
    root_cause = plain.root_cause(transcript)
    if root_cause is not None:
        pairs = [match.groups() for _, match in transcript.found(KEY_WAITED_FOR)]
        answers += [[int(rank) for rank in pair if int(rank) != root_cause] for pair in pairs]
        answers.append([root_cause])
    return answers


def _environment(script: Path, folder: Path) -> dict[str, str]:
    wraps_a_model = WRAPS_A_MODEL.search(script.read_text(encoding="utf-8"))
    before = os.environ.get("PYTHONPATH")
    return {
        "HANGBENCH_TORCH_DUMPS": str(folder / "dumps"),
        "HANGBENCH_TORCH_TIMEOUT": str(TIMEOUT_S),
        "PYTHONFAULTHANDLER": "1",
        "PYTHONPATH": os.pathsep.join([str(SITE), *([before] if before else [])]),
        "TORCH_DISTRIBUTED_DEBUG": "INFO" if wraps_a_model else "DETAIL",
    }


PEER = Peer(
    name="torch",
    distribution="torch",
    launcher=torchrun,
    hear=hear,
    environment=_environment,
    stack_files="dumps/stacks_*.txt",
)
