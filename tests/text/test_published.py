"""One list says which variables leave a rank: the journal and run.json tell the same of it."""

from __future__ import annotations

import subprocess

from lightning_hangcheck.identity import identify
from lightning_hangcheck.observe.discovery import FoundRank
from lightning_hangcheck.observe.run_record import rank_record
from lightning_hangcheck.recorder.process.process_facts import start_facts
from lightning_hangcheck.text.published import published_environment

ENVIRONMENT = {"WORLD_SIZE": "2", "UCX_TLS": "tcp", "FSDP_VERSION": "2", "HOME": "/root"}
TOLD = {"FSDP_VERSION": "2", "UCX_TLS": "tcp", "WORLD_SIZE": "2"}


def test_what_training_reads_is_told_and_nothing_else() -> None:
    assert published_environment(ENVIRONMENT) == TOLD


def test_the_journal_and_the_run_record_tell_the_same() -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen(["cat"], stdin=pipe, stdout=pipe, bufsize=0, env=ENVIRONMENT) as rank:
        assert rank.stdin is not None
        assert rank.stdout is not None
        rank.stdin.write(b"\n")
        assert rank.stdout.read(1) == b"\n"  # it runs: during its exec it shows no environment
        recorded = rank_record(FoundRank(rank=0, pid=rank.pid), "node0")
    assert recorded.environment == TOLD
    assert start_facts(ENVIRONMENT, identify(ENVIRONMENT))["environment"] == TOLD
