#!/usr/bin/env python
"""Say where a run's verdict lies and whether it is the expected one: exit 0 if so, else 1."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lightning_hangcheck.errors import UnreadableRun
from lightning_hangcheck.files import decode
from lightning_hangcheck.model.verdict import Verdict
from lightning_hangcheck.rundir import RunFolder


def main() -> int:
    """Read verdict.json and compare."""
    options = _parse_options()
    folder = RunFolder(options.run_folder.absolute())
    try:
        data = folder.verdict_file.read_bytes()
        verdict = decode(data, Verdict, str(folder.verdict_file))
    except (OSError, UnreadableRun) as error:
        sys.stderr.write(f"there is no readable verdict in {folder.path}: {error}\n")
        return 1
    print(f"verdict   {folder.verdict_file}")
    print(f"evidence  {folder.path / 'evidence'}")
    differences = _compare(verdict, options)
    for difference in differences:
        sys.stderr.write(f"not as expected: {difference}\n")
    if not differences:
        print(f"as expected: {verdict.verdict}. {verdict.summary}".rstrip(". ") + ".")
    return 1 if differences else 0


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run_folder", type=Path)
    parser.add_argument("--verdict", required=True)
    parser.add_argument("--cause")
    parser.add_argument("--culprit", type=int)
    parser.add_argument("--checkpoint", type=int, help="the last one on every rank")
    return parser.parse_args()


def _compare(verdict: Verdict, options: argparse.Namespace) -> list[str]:
    differences = []
    if verdict.verdict != options.verdict:
        differences.append(f"the verdict is {verdict.verdict!r}, not {options.verdict!r}")
    if options.cause and verdict.cause != options.cause:
        differences.append(f"the cause is {verdict.cause!r}, not {options.cause!r}")
    if options.culprit is not None and verdict.culprits != (options.culprit,):
        differences.append(f"the culprits are {verdict.culprits}, not rank {options.culprit}")
    if options.checkpoint is not None:
        differences += _compare_checkpoints(verdict, options.checkpoint)
    return differences


def _compare_checkpoints(verdict: Verdict, number: int) -> list[str]:
    if len(verdict.ranks) != verdict.world_size:
        return [f"the verdict knows {len(verdict.ranks)} of {verdict.world_size} ranks"]
    return [
        f"rank {row.rank} did not pass checkpoint {number} last"
        for row in verdict.ranks
        if row.last_checkpoint is None or row.last_checkpoint.number != number
    ]


if __name__ == "__main__":
    sys.exit(main())
