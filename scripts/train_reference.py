#!/usr/bin/env python
"""Train a small causal language model as a careful user of lightning-hangcheck would.

    torchrun --nproc_per_node=2 scripts/train_reference.py --max_steps 30
    python -m torch.distributed.launch --nproc_per_node=2 scripts/train_reference.py
    python scripts/train_reference.py --devices 2 --max_steps 30
    hangcheck run -- torchrun --nproc_per_node=2 scripts/train_reference.py --inject rank_stalled@1

It passes twelve checkpoints on every rank; ``--inject`` makes a rank fail for real (``--help``).
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import lightning_hangcheck as hc
from lightning_hangcheck.recorder.lifecycle import current

if TYPE_CHECKING:
    from reference.arguments import Arguments


def main() -> None:
    """Read the command line, then train."""
    hc.checkpoint("Script started", number=1)
    # imported behind the checkpoint, so that a slow or hanging import is seen
    from reference.arguments import parse_arguments, stays_alone

    hc.report_state("at the start")
    arguments = parse_arguments(sys.argv[1:], os.environ)
    if stays_alone(arguments, os.environ):
        current().learn_identity(0, 1, 0)
    hc.checkpoint("Args parsed", number=2)
    hc.make_directory(arguments.output_dir)
    hc.checkpoint("Logs directory ready", number=3)
    train(arguments)
    hc.checkpoint("Training finished", number=12)


def train(arguments: Arguments) -> None:
    """Build everything in the order of the checkpoints, then fit."""
    from reference.injection import Injection
    from reference.tokenizer import END_OF_TEXT, load_tokenizer

    from lightning_hangcheck.identity import identify

    # the tokenizer's threads would not survive the fork of DataLoader workers
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    injection = Injection(arguments.inject, identify(os.environ).rank or 0)
    with hc.rank_zero_first("tokenizer"):
        tokenizer = load_tokenizer(arguments.output_dir / "tokenizer")
    hc.checkpoint("Tokenizer loaded", number=4)

    from reference.language_model import LLMModule, create_model
    from reference.memory_logging import MemoryLoggingCallback
    from reference.text_data import CorpusDataModule
    from reference.training import choose_hardware, create_logger, create_trainer

    model = create_model(tokenizer, END_OF_TEXT)
    hc.checkpoint("Model created", number=5)
    module = LLMModule(model, injection)
    hc.checkpoint("LLMModule ready", number=6)
    data = CorpusDataModule(tokenizer, arguments, injection)
    hc.checkpoint("DataModule ready", number=7)
    hardware = choose_hardware(arguments.devices, arguments.strategy)
    hc.checkpoint("Accelerator configured", number=8)
    logger = create_logger(arguments.output_dir, injection)
    hc.checkpoint("WandbLogger ready (prime suspect)", number=9)
    memory_logging = MemoryLoggingCallback()
    hc.checkpoint("MemoryLoggingCallback ready", number=10)
    hc.report_state("before the Trainer")
    trainer = create_trainer(arguments, hardware, logger, memory_logging, injection)
    hc.report_state("after the Trainer")
    hc.checkpoint("Trainer ready (prime suspect)", number=11)
    injection.before_rendezvous()
    trainer.fit(module, data)


if __name__ == "__main__":
    main()
