"""Ray Train with Lightning: each worker is a rank, and the first of each node starts a sidecar."""

import lightning.pytorch as pl
import ray
from lightning.pytorch.demos.boring_classes import BoringModel
from ray.train import RunConfig, ScalingConfig
from ray.train.lightning import RayDDPStrategy, RayLightningEnvironment, prepare_trainer
from ray.train.torch import TorchTrainer

import lightning_hangcheck as hc

SHARED = "/shared/runs"


def train() -> None:
    """What each worker runs."""
    trainer = pl.Trainer(
        max_epochs=1,
        accelerator="auto",
        devices="auto",
        strategy=RayDDPStrategy(),
        plugins=[RayLightningEnvironment()],
        callbacks=[hc.HangCheck()],
        enable_checkpointing=False,
        logger=False,
    )
    prepare_trainer(trainer).fit(BoringModel())


if __name__ == "__main__":
    # workers are started by Ray, on all nodes: what they shall read must be in its environment
    ray.init(runtime_env={"env_vars": {"HANGCHECK_NODES_DIR": f"{SHARED}/meet"}})
    scaling = ScalingConfig(num_workers=2, use_gpu=False)
    TorchTrainer(train, scaling_config=scaling, run_config=RunConfig(storage_path=SHARED)).fit()
