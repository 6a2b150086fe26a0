"""Trains with the wandb guard and HangCheck as users do, under whatever launches it.

Arguments: the strategy and the number of devices.
"""

import importlib
import os
import sys
from pathlib import Path

import gloo
import hooks_model
from hooks_model import Spy, Tiny, loaded, loader, package, trainer
from saying import page, say

import lightning_hangcheck as hc
from lightning_hangcheck.recorder.lifecycle import current


class Data(package.LightningDataModule):
    """Builds a file on rank 0 that the other ranks read, before any process group is used."""

    def setup(self, stage):
        built = Path("built.txt")
        with hc.rank_zero_first("data", 240.0):
            if not built.exists():
                built.write_text(str(os.getpid()))
        self.built_by = int(built.read_text())

    def train_dataloader(self):
        return loader()


class Teller(Spy):
    """Says at the end of training what this rank's logger and page look like."""

    def on_train_end(self, trainer, pl_module):
        hc.barrier("trained", 240.0)
        logger, beat = trainer.logger, page()
        say(
            "trained",
            rank=trainer.global_rank,
            page=[beat.rank, beat.world_size, beat.local_rank, beat.step],
            phases=sorted({row[1] for row in self.seen}),
            identity=[logger.name, logger.version, logger.save_dir],
            experiment=type(logger.experiment).__name__,
            run_id=str(getattr(logger.experiment, "id", None)) if trainer.is_global_zero else None,
            built_by=trainer.datamodule.built_by,
            session=str(current().session.path),
        )


def main():
    strategy, devices = sys.argv[1], int(sys.argv[2])
    say("imported", rank=os.environ.get("LOCAL_RANK", "0"), modules=loaded("wandb"))
    if os.environ.get("WANDB_MODE") == "online":
        importlib.import_module("wandb")  # on a busy machine it takes longer than the guard waits
    folder = f"logs-of-{os.environ.get('LOCAL_RANK', '0')}"
    logger = hc.guarded_wandb_logger("trial", folder, project="demo")
    say("made", rank=os.environ.get("LOCAL_RANK", "0"), version=logger.version)
    running = trainer(
        callbacks=[hc.HangCheck(), Teller()],
        strategy=strategy,
        devices=devices,
        max_steps=2,
        logger=logger,
    )
    running.fit(Tiny(), datamodule=Data())
    say(
        "ended",
        rank=running.global_rank,
        pid_of_main=os.getpid(),
        package=hooks_model.package.__name__,
    )


if __name__ == "__main__":
    main()
    gloo.leave()
