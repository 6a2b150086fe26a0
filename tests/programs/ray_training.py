"""Two ranks under Ray Train, in Lightning or in a plain loop.

``ray_training.py lightning|plain returns|raises|stalls STORAGE [unaware]``: after 20 steps rank 1
raises, or waits for what nobody brings. With ``unaware`` there is no callback.
"""

import queue
import sys
import time

import ray
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

STEPS, STEP_S = 60, 0.02


def stand_still():
    queue.Queue().get()


def pass_step(ending, number):
    if number == STEPS // 3 and ray.train.get_context().get_world_rank() == 1:
        if ending == "stalls":
            stand_still()
        if ending == "raises":
            raise ValueError("no such split")
    time.sleep(STEP_S)


def callbacks(unaware):
    if unaware:
        return []
    import lightning_hangcheck as hc

    return [hc.HangCheck()]


def train_plainly(config):
    import torch
    from ray.train.torch import prepare_model

    callbacks(config["unaware"])
    model = prepare_model(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number in range(STEPS):
        pass_step(config["ending"], number)
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()


def train_by_lightning(config):
    import lightning.pytorch as pl
    import torch
    from lightning.pytorch.demos.boring_classes import BoringModel, RandomDataset
    from ray.train.lightning import RayDDPStrategy, RayLightningEnvironment, prepare_trainer

    class Model(BoringModel):
        def training_step(self, batch, batch_idx):
            pass_step(config["ending"], batch_idx)
            return super().training_step(batch, batch_idx)

        def train_dataloader(self):
            return torch.utils.data.DataLoader(RandomDataset(32, 2 * STEPS))

    trainer = pl.Trainer(
        max_epochs=1,
        limit_val_batches=0,
        accelerator="cpu",
        devices="auto",
        strategy=RayDDPStrategy(),
        plugins=[RayLightningEnvironment()],
        callbacks=callbacks(config["unaware"]),
        enable_checkpointing=False,
        enable_progress_bar=False,
        logger=False,
    )
    prepare_trainer(trainer).fit(Model())


if __name__ == "__main__":
    loop, ending, storage, *unaware = sys.argv[1:]
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    TorchTrainer(
        {"plain": train_plainly, "lightning": train_by_lightning}[loop],
        train_loop_config={"ending": ending, "unaware": bool(unaware)},
        scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5}),
        run_config=RunConfig(storage_path=storage, name="job"),
    ).fit()
