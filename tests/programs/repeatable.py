"""Trains or generates, in each way that its arguments name, and prints all numbers to the last bit.

What it prints is the same in each run, whoever watches.
"""

import hashlib
import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

STEPS = 12


def bits(tensor):
    return float(tensor.detach()).hex()


def digest(module):
    total = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        total.update(name.encode() + tensor.detach().numpy().tobytes())
    return total.hexdigest()


def network():
    return torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.Dropout(0.1), torch.nn.Linear(16, 1)
    )


def samples():
    return TensorDataset(torch.randn(4 * STEPS, 8), torch.randn(4 * STEPS, 1))


def step_with(model, optimizer, backward, batch):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(batch[0]), batch[1])
    backward(loss)
    optimizer.step()
    print(bits(loss))


def plain():
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    for batch in DataLoader(samples(), batch_size=4, shuffle=True):
        step_with(model, optimizer, torch.Tensor.backward, batch)
    print(digest(model))


def adversaries():
    models = network(), network()
    optimizers = [torch.optim.AdamW(model.parameters()) for model in models]
    for batch in DataLoader(samples(), batch_size=4, shuffle=True):
        for model, optimizer in zip(models, optimizers, strict=True):
            step_with(model, optimizer, torch.Tensor.backward, batch)
    print(digest(models[0]), digest(models[1]))


def compiled():
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    step = torch.compile(lambda: optimizer.step(), backend="eager")
    for features, wanted in DataLoader(samples(), batch_size=4, shuffle=True):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(features), wanted).backward()
        step()
    print(digest(model))


def fabric():
    from lightning.fabric import Fabric

    launched = Fabric(accelerator="cpu", devices=1)
    model = network()
    model, optimizer = launched.setup(model, torch.optim.AdamW(model.parameters()))
    for batch in launched.setup_dataloaders(DataLoader(samples(), batch_size=4, shuffle=True)):
        step_with(model, optimizer, launched.backward, batch)
    print(digest(model))


class Augmented(torch.utils.data.Dataset):
    """Draws random numbers in the worker processes."""

    def __len__(self):
        return 4 * STEPS

    def __getitem__(self, index):
        return torch.randn(8) + index, torch.rand(1)


def workers():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for batch in DataLoader(Augmented(), batch_size=4, shuffle=True, num_workers=2):
        step_with(model, optimizer, torch.Tensor.backward, batch)
    print(digest(model))


def accelerated():
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    loader = DataLoader(samples(), batch_size=4, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for batch in loader:
        step_with(model, optimizer, accelerator.backward, batch)
    print(digest(accelerator.unwrap_model(model)))


def lightning():
    import pytorch_lightning as pl

    class Model(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.network = network()

        def training_step(self, batch):
            loss = torch.nn.functional.mse_loss(self.network(batch[0]), batch[1])
            print(bits(loss))
            return loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())

    model = Model()
    trainer = pl.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, DataLoader(samples(), batch_size=4, shuffle=True))
    print(digest(model))


def tiny_llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=64, num_attention_heads=2, **sizes))


def huggingface():
    import tempfile

    from transformers import PrinterCallback, Trainer, TrainingArguments

    texts = [{"input_ids": ids, "labels": ids} for ids in torch.randint(0, 64, (4 * STEPS, 12))]
    model = tiny_llama()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=4,
            num_train_epochs=1,
            logging_steps=1,
            report_to=[],
            use_cpu=True,
            save_strategy="no",
            disable_tqdm=True,
        )
        trainer = Trainer(model=model, args=arguments, train_dataset=texts)
        trainer.pop_callback(PrinterCallback)  # prints how long it took
        trainer.train()
    for entry in trainer.state.log_history:
        print(entry["loss"].hex() if "loss" in entry else entry["train_loss"].hex())
    print(digest(model))


def generate():
    model = tiny_llama().eval()
    prompt = torch.randint(0, 64, (3, 5))
    for sampled in (False, True):
        tokens = model.generate(prompt, max_new_tokens=20, do_sample=sampled, pad_token_id=0)
        print(tokens.tolist())


torch.set_num_threads(1)
for way in sys.argv[1:]:
    torch.manual_seed(7)
    print("==", way)
    globals()[way]()
