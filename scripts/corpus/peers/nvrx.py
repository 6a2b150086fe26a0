"""nvidia-resiliency-ext: `ft_launcher` with one monitor process a rank.

The monitors watch a rank only once its script has connected to them and sends heartbeats or opens
sections; none of the cases does, so they get what the launcher gives. Timeouts 25 s, check every
second, no restart (a restarted job would hang once more), stop within 5 s.

What counts as what:

* alarm: a monitor's `FT timeout elapsed`, an uncaught exception of a rank, a rank that
  `failed (exitcode: -9)`, or the launcher's own failing end.
* culprits: the ranks whose monitors say so; the first rank that the launcher saw fail.
* cause: `FT timeout elapsed` stands for `rank_stalled`, a failed rank for `process_dead`.
* line: a traceback that shows the function.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from corpus.peers import torchrun as plain
from corpus.peers.peer import BINARIES, STARTS_ITSELF, Peer
from corpus.peers.transcript import Said, Transcript, first_alarm, heard_causes

if TYPE_CHECKING:
    from hangbench.bench import Truth

TIMEOUT_S = 25
ELAPSED = re.compile(r"\[RankMonServer\d+@[^:]*:(\d+)\] FT timeout elapsed")
FAILED = re.compile(r"failed \(exitcode: .*?\) local_rank: (\d+)")
ALARMS = (ELAPSED, *plain.ALARMS)
MEANINGS = (*plain.MEANINGS, (ELAPSED, "rank_stalled"))


def hear(transcript: Transcript) -> Said:
    """Understand what the launcher and its monitors printed."""
    alarm = first_alarm(transcript, ALARMS)
    if alarm is None:
        return Said()
    elapsed = {int(match.group(1)) for _, match in transcript.found(ELAPSED)}
    failed = [int(match.group(1)) for _, match in transcript.found(FAILED)]
    return Said(
        at_s=alarm.at_s,
        culprits=[*([sorted(elapsed)] if elapsed else []), *([[failed[0]]] if failed else [])],
        causes=heard_causes(transcript, MEANINGS),
        words=alarm.text,
    )


def _launcher(truth: Truth) -> list[str]:
    if truth.launcher == "python":
        return STARTS_ITSELF
    return [
        str(BINARIES / "ft_launcher"),
        f"--nproc_per_node={truth.processes}",
        "--standalone",
        "--max-restarts=0",
        "--term-timeout=5",
        "--workers-stop-timeout=5",
        "--ft-workload_check_interval=1",
        f"--ft-initial_rank_heartbeat_timeout={TIMEOUT_S}",
        f"--ft-rank_heartbeat_timeout={TIMEOUT_S}",
        f"--ft-rank_out_of_section_timeout={TIMEOUT_S}",
    ]


PEER = Peer(name="nvrx", distribution="nvidia-resiliency-ext", launcher=_launcher, hear=hear)
