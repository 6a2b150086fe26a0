"""No secret leaves a job: every byte that is left behind is searched, however the job started."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from processes import PATIENCE_S, PROGRAMS, ending, until
from watch.launched import verdict_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

pytestmark = pytest.mark.real
LEAK = "xleakx"
HEXADECIMAL = "0123456789abcdef" * 2 + "01234567"
PROGRAM = str(PROGRAMS / "spilling_secrets.py")
ARGUMENTS = [
    *("--api_key", LEAK, f"--api-key={LEAK}", "--wandb_key", LEAK, f"--wandb-key={LEAK}"),
    *("--token", LEAK, f"--pass={LEAK}", f"--password={LEAK}", "--passwd", f"two words {LEAK}"),
    *("--auth", LEAK, "--hf-token", LEAK, f"-token={LEAK}", "--passphrase", LEAK, "--pw", LEAK),
    *("-k", f"a8{LEAK}3F9kq2LmZ0", f"-pa8{LEAK}3F9kq2LmZ0", f"HF_TOKEN={LEAK}"),
    *(f"wandb.key={LEAK}", f"+trainer.token={LEAK}", f"++db.password=a,b;c&{LEAK}"),
    *(f'{{"api_key": "{LEAK}", "nested": {{"secret": ["{LEAK}", "{LEAK}"]}}}}',),
    *("--data", f"https://me:{LEAK}@host/x?token={LEAK}&q=1", f"s3://AKIA{'A' * 16}:{LEAK}@b"),
    *("-H", f"X-Auth-Token: {LEAK}", "--header", f"Authorization: Basic {LEAK}", HEXADECIMAL),
]
READABLE = ["--tokenizer", "gpt2", "--max_tokens", "512", "--author", "me", "-k", "5", "monkey=1"]
ENVIRONMENT = {
    "WANDB_API_KEY": LEAK,
    "WANDB_BASE_URL": f"http://me:{LEAK}@127.0.0.1:9",
    "HF_TOKEN": f"hf_{LEAK}{'A' * 30}",
    "SLURM_JWT": LEAK,
    "HF_HUB_EXTRA": f"--password {LEAK}",
    "API_KEY": LEAK,
    "HANGCHECK_LOCALS": "1",
    "HANGCHECK_IDLE_AFTER": "9",
    "HANGCHECK_STALL_TIMEOUT": "12",
}
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
OURS = [sys.executable, "-m", "lightning_hangcheck"]


@contextmanager
def started(
    folder: Path, command: Sequence[str], *, ranks: int, **environment: str
) -> Iterator[list[Path]]:
    """Start a command; yields what its ranks wrote once they stand."""
    known = set(folder.glob("*.stands"))
    with (folder / "console").open("ab") as console:
        process = subprocess.Popen(
            list(command),
            cwd=folder,
            env={**os.environ, **ENVIRONMENT, **environment},
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=console,
        )

    def stands() -> list[Path]:
        found = set(folder.glob("*.stands")) - known
        return sorted(found) if len(found) == ranks else []

    with ending(process):
        yield until(stands, f"{ranks} to stand")


def hang_is_found(run: Path) -> bool:
    return (run / "verdict.json").exists() and verdict_of(run).verdict == "hang"


def assert_silent(*places: Path | str) -> bytes:
    """Search every byte below these places, and return all of them."""
    files = [file for place in places for file in (Path(place), *Path(place).rglob("*"))]
    data = {str(file): file.read_bytes() for file in files if file.is_file()}
    leaking = {
        name: content[max(0, content.find(secret) - 80) : content.find(secret) + 40]
        for name, content in data.items()
        for secret in (LEAK.encode(), HEXADECIMAL.encode())
        if secret in content
    }
    assert data
    assert not leaking
    return b"".join(data.values())


def report_of(run: Path) -> None:
    """Save beside the run all that can be printed of it."""
    for number, options in enumerate(([], ["--json"])):
        shown = subprocess.run(
            [*OURS, "report", str(run), *options],
            capture_output=True,
            timeout=PATIENCE_S,
            check=True,
        )
        (run.parent / f"report-{number}").write_bytes(shown.stdout + shown.stderr)


def test_a_job_that_hangs_among_its_secrets(tmp_path: Path) -> None:
    """In the run folder, in shared memory while it runs, on its console and in its reports."""
    run = tmp_path / "run"
    words = [*TORCHRUN, PROGRAM, "recorded", str(tmp_path), *ARGUMENTS, *READABLE]
    command = [*OURS, "run", "--run-dir", str(run), "--", sys.executable, *words]
    with started(tmp_path, command, ranks=2, HANGCHECK_RUN_DIR=str(run)) as standing:
        until(lambda: hang_is_found(run), "a verdict")
        shared = assert_silent(standing[0].read_text())
        report_of(run)
    everything = assert_silent(tmp_path)
    assert b"logged in with --wandb_key [redacted]" in shared
    assert b"--tokenizer gpt2 --max_tokens 512 --author me -k 5 monkey=1" in everything
    assert b"X-Api-Key" in everything, "local variables were taken"


def test_a_visit_to_a_job_that_never_heard_of_us(tmp_path: Path) -> None:
    """The list of jobs to choose from, and the visit to one of them with its local variables."""
    command = [sys.executable, PROGRAM, "unaware", str(tmp_path), *ARGUMENTS, *READABLE]
    rank = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    run = tmp_path / "run"
    with (
        started(tmp_path, command, ranks=1, MASTER_PORT="1", **rank) as standing,
        started(tmp_path, command, ranks=1, MASTER_PORT="2", **rank),
    ):
        pid = standing[0].stem
        listed = attach(tmp_path)
        visited = attach(tmp_path, "--pid", pid, "--locals")
    assert (listed.returncode, visited.returncode) == (2, 0), visited.stderr
    report_of(run)
    (tmp_path / "told").write_bytes(b"".join((listed.stderr, visited.stdout, visited.stderr)))
    everything = assert_silent(tmp_path)
    assert f"pid {pid}  world size 2  ".encode() in everything
    assert b"X-Api-Key" in everything


def attach(folder: Path, *options: str) -> subprocess.CompletedProcess[bytes]:
    visit = [*OURS, "attach", "--run-dir", str(folder / "run"), *options]
    return subprocess.run(visit, cwd=folder, capture_output=True, timeout=PATIENCE_S, check=False)
