"""Programs under Lightning's Trainer; pieces stand in hooks of the module, callbacks and data."""

from __future__ import annotations

SCRIPT = """
STEPS = $steps
$constants

$definitions


class $Dataset(Dataset):
    def __init__(self, count):
        self.features = torch.randn(count, 16)

    def __len__(self):
        return len(self.features)

    def __getitem__(self, index):
        $run.read += 1
        $in_dataset
        return self.features[index], torch.ones(1)


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(context, inputs):
        return inputs * 2.0

    @staticmethod
    def backward(context, gradient):
        $in_backward
        return gradient * 2.0


class Descent(torch.optim.SGD):
    def step(self, closure=None):
        loss = super().step(closure)
        $in_optimizer
        return loss


class $Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(16, 32)
        self.head = nn.Linear(32, 1)

    def setup(self, stage):
        $run.rank = self.global_rank

    def forward(self, inputs):
        return self.head(Scaled.apply(torch.tanh(self.embed(inputs))))

    def training_step(self, batch, index):
        $run.step = index
        $in_step
        time.sleep($pace)
        inputs, targets = batch
        return nn.functional.mse_loss(self(inputs), targets)

    def validation_step(self, batch, index):
        $in_validation
        return self(batch[0]).mean()

    def configure_optimizers(self):
        return Descent(self.parameters(), lr=0.01)

    def on_save_checkpoint(self, checkpoint):
        $in_checkpoint
        checkpoint["$word"] = 1

    def teardown(self, stage):
        $in_teardown


class Watcher(Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        $in_callback

    def on_validation_epoch_end(self, trainer, module):
        $in_validation_end


class ${Dataset}Module(LightningDataModule):
    def train_dataloader(self):
        $in_data
        return DataLoader($Dataset(8 * $ranks * STEPS), batch_size=8, num_workers=$workers)

    def val_dataloader(self):
        return DataLoader(TensorDataset(torch.randn(24 * $ranks, 16)), batch_size=8)


def $load_model():
    $in_model_load
    return $Model()


def $create_logger():
    $in_logger
    return False


def main():
    trainer = Trainer(
        accelerator="cpu",
        devices=$ranks,
        strategy="$strategy",
        max_epochs=1,
        num_sanity_val_steps=$sanity_steps,
        logger=$create_logger(),
        callbacks=[Watcher(), ModelCheckpoint(dirpath="$word")],
        enable_progress_bar=$bar,
        enable_model_summary=False,
    )
    trainer.fit($load_model(), datamodule=${Dataset}Module())
    print(f"rank {trainer.global_rank} done", flush=True)


if __name__ == "__main__":
    main()
"""
IMPORTS = (
    "lightning.pytorch.Callback",
    "lightning.pytorch.LightningDataModule",
    "lightning.pytorch.LightningModule",
    "lightning.pytorch.Trainer",
    "lightning.pytorch.callbacks.ModelCheckpoint",
    "torch.distributed as dist",
    "torch.utils.data.TensorDataset",
)
PHASES = {
    "model_load": "model_load",
    "logger": "logger_init",
    "data": "dataloading",
    "dataset": "dataloading",
    "worker": "dataloading",
    "step": "training_step",
    "callback": "training_step",
    "backward": "backward",
    "optimizer": "optimizer_step",
    "sanity": "sanity_check",
    "validation": "validation",
    "validation_end": "validation",
    "checkpoint": "checkpoint_save",
    "teardown": "teardown",
}
EARLY = ("model_load", "logger")
"""Before Lightning has made the process group."""
