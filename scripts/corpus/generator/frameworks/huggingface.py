"""Programs under the Trainer of transformers; pieces stand in callbacks, overrides and data."""

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
        return {"features": self.features[index], "labels": torch.ones(1)}


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
        $in_optimizer
        return super().step(closure)


class $Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(16, 32)
        self.head = nn.Linear(32, 1)

    def forward(self, features, labels=None):
        logits = self.head(Scaled.apply(torch.tanh(self.embed(features))))
        return {"loss": nn.functional.mse_loss(logits, labels), "logits": logits}


class Progress(TrainerCallback):
    def on_step_begin(self, arguments, state, control, **_):
        $run.step = state.global_step

    def on_step_end(self, arguments, state, control, **_):
        time.sleep($pace)
        $in_callback


class ${Model}Trainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **_):
        $in_step
        outputs = model(**inputs)
        return (outputs["loss"], outputs) if return_outputs else outputs["loss"]

    def prediction_step(self, model, inputs, *arguments, **named):
        $run.evaluated += 1
        $in_validation
        return super().prediction_step(model, inputs, *arguments, **named)

    def _save_checkpoint(self, *arguments, **named):
        $in_checkpoint
        return super()._save_checkpoint(*arguments, **named)


def $startup():
    torch.manual_seed(3)
    $in_startup


def $load_tokenizer():
    $in_tokenizer
    return {"<pad>": 0}


def $load_model():
    $in_model_load
    return $Model()


def $load_dataset():
    $in_data
    return $Dataset(8 * $ranks * STEPS)


def $cleanup():
    $in_teardown
    print(f"rank {$run.rank} done", flush=True)


def main():
    arguments = TrainingArguments(
        output_dir="$word",
        use_cpu=True,
        report_to=[],
        save_strategy="epoch",
        eval_strategy="epoch",
        num_train_epochs=1,
        per_device_train_batch_size=8,
        dataloader_num_workers=$workers,
        disable_tqdm=True,
    )
    $run.rank = arguments.process_index
    $startup()
    $load_tokenizer()
    model = $load_model()
    trainer = ${Model}Trainer(
        model,
        arguments,
        train_dataset=$load_dataset(),
        eval_dataset=[{"features": torch.randn(16), "labels": torch.ones(1)}] * (24 * $ranks),
        callbacks=[Progress()],
        optimizers=(Descent(model.parameters(), lr=0.01), None),
    )
    trainer.train()
    $cleanup()
    if dist.is_initialized():
        del trainer
        $destroy


$launcher
"""
IMPORTS = (
    "torch.distributed as dist",
    "transformers.Trainer",
    "transformers.TrainerCallback",
    "transformers.TrainingArguments",
)
PHASES = {
    "startup": "startup",
    "tokenizer": "tokenizer",
    "model_load": "model_load",
    "data": "dataloading",
    "dataset": "dataloading",
    "worker": "dataloading",
    "step": "training_step",
    "callback": "training_step",
    "backward": "backward",
    "optimizer": "optimizer_step",
    "validation": "validation",
    "checkpoint": "checkpoint_save",
    "teardown": "teardown",
}
