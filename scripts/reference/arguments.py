"""The command line of the reference script."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from lightning_hangcheck.identity import identify
from reference.faults import KINDS, BadFault, Fault, parse_fault

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True)
class Arguments:
    """What the user asked for.

    Attributes:
        devices: Ranks on this node.
        strategy: Lightning's name of one; None for the one that suits the number of ranks.
        save_every: Steps between two checkpoints.
    """

    batch_size: int
    max_steps: int
    fast_dev_run: int
    num_workers: int
    devices: int
    strategy: str | None
    save_every: int
    output_dir: Path
    inject: tuple[Fault, ...]


def stays_alone(arguments: Arguments, environment: Mapping[str, str]) -> bool:
    """Whether this process is all there will be: nobody started ranks, and the Trainer will not.

    Args:
        arguments: Of the command line.
        environment: Of this process.
    """
    launched = identify(environment).launcher != "none" or "WORLD_SIZE" in environment
    asked = arguments.devices > 1 or arguments.strategy is not None
    return not launched and not asked and environment.get("SLURM_NNODES", "1") == "1"


class _OneSentenceParser(argparse.ArgumentParser):
    """Says what is wrong in one sentence: two ranks would print the usage twice."""

    def error(self, message: str) -> NoReturn:
        sys.stderr.write(f"train_reference.py: {message}\n")
        raise SystemExit(2)


def parse_arguments(words: Sequence[str], environment: Mapping[str, str]) -> Arguments:
    """Read the command line.

    Args:
        words: Without the program's name.
        environment: Names the number of ranks that a launcher started.

    Raises:
        SystemExit: 2 after one sentence on stderr that says what is wrong; 0 after ``--help``.
    """
    parser = _build_parser(int(environment.get("LOCAL_WORLD_SIZE", "1")))
    values = vars(parser.parse_args(words))
    try:
        del values["local_rank"]
        faults = tuple(parse_fault(text) for text in values.pop("inject"))
        arguments = Arguments(**values, inject=faults)
        _check_ranks(arguments, environment)
    except BadFault as error:
        parser.error(str(error))
    return _fit_to_faults(arguments)


def _build_parser(local_world_size: int) -> argparse.ArgumentParser:
    parser = _OneSentenceParser(
        description="Train a small causal language model with PyTorch Lightning, DDP and wandb.",
        epilog=_describe_faults(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    number = _whole_number
    parser.add_argument("--batch_size", type=number, default=32, help="per rank (32)")
    parser.add_argument("--max_steps", type=number, default=10000, help="optimizer steps (10000)")
    parser.add_argument("--fast_dev_run", type=number, default=0, help="only this many batches")
    parser.add_argument("--num_workers", type=number, default=0, help="DataLoader workers (0)")
    parser.add_argument(
        "--devices",
        type=number,
        default=local_world_size,
        help="ranks on this node (as many as the launcher started, or 1)",
    )
    parser.add_argument("--strategy", help="of the Trainer (ddp; auto for a single rank)")
    # torch.distributed.launch hands it to every rank, beside the variable LOCAL_RANK that counts
    parser.add_argument("--local-rank", "--local_rank", type=number, help=argparse.SUPPRESS)
    parser.add_argument("--save_every", type=number, default=500, help="steps (500)")
    parser.add_argument("--output_dir", type=Path, default=Path("logs"), help="folder (logs/)")
    parser.add_argument(
        "--inject",
        action="append",
        default=[],
        metavar="CAUSE@RANK[:STEP]",
        help="make this rank fail, for real; may be given several times",
    )
    return parser


def _whole_number(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def _describe_faults() -> str:
    lines = [f"  {name:18}{kind.effect}" for name, kind in KINDS.items()]
    return "\n".join(["causes to inject:", *lines])


def _check_ranks(arguments: Arguments, environment: Mapping[str, str]) -> None:
    world_size = int(environment.get("WORLD_SIZE", arguments.devices))
    for fault in arguments.inject:
        if fault.rank >= world_size:
            raise BadFault(
                f"--inject {fault.cause}@{fault.rank}: there is no rank {fault.rank} in a world "
                f"of {world_size}; write a rank from 0 to {world_size - 1}"
            )
    _refuse_rendezvous_without_launcher(arguments, environment)


def _refuse_rendezvous_without_launcher(
    arguments: Arguments, environment: Mapping[str, str]
) -> None:
    """Lightning hands rank 0's port to the ranks it starts, so they would all be wrong alike."""
    if "LOCAL_RANK" in environment:
        return
    if any(fault.cause == "rendezvous" and fault.rank == 0 for fault in arguments.inject):
        raise BadFault("--inject rendezvous@0 needs a launcher: start the script with torchrun")


def _fit_to_faults(arguments: Arguments) -> Arguments:
    """Arrange that each fault meets what it strikes: a worker process, a checkpoint save."""
    for fault in arguments.inject:
        if fault.kind.place == "worker":
            arguments = replace(arguments, num_workers=max(1, arguments.num_workers))
        if fault.kind.place == "save" and fault.step is not None:
            arguments = replace(arguments, save_every=fault.step)
    return arguments
