"""A script that never heard of this package: Lightning, transformers and wandb, tiny and offline.

Usage: unaware_training.py PACKAGE; with TWO_RANKS=1 in the environment on two processes and
without wandb.
"""

import importlib
import os
import sys

import gloo
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch.utils.data import DataLoader, TensorDataset
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
)

package = importlib.import_module(sys.argv[1])
loggers = importlib.import_module(f"{sys.argv[1]}.loggers")


class Data(package.LightningDataModule):
    def train_dataloader(self):
        return DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2, num_workers=1)


class Model(package.LightningModule):
    def __init__(self, backbone):
        super().__init__()
        self.parts = [backbone]  # in a list, so that it is not trained
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, _):
        return self.layer(batch[0]).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.layer.parameters(), lr=0.1)


def main():
    folder = f"parts-{os.getpid()}"
    config = GPT2Config(n_layer=1, n_head=1, n_embd=8, vocab_size=8, n_positions=8)
    GPT2LMHeadModel(config).save_pretrained(folder)
    words = Tokenizer(WordLevel({"a": 0}))
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    backbone = AutoModelForCausalLM.from_pretrained(folder)
    two = bool(os.environ.get("TWO_RANKS"))
    made = {"project": "demo", "offline": True, "save_dir": folder}
    logger = False if two else loggers.WandbLogger(**made)
    trainer = package.Trainer(
        accelerator="cpu",
        devices=2 if two else 1,
        max_epochs=2,
        log_every_n_steps=1,
        logger=logger,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    trainer.fit(Model(backbone), datamodule=Data())
    trainer.save_checkpoint(f"{folder}/last.ckpt")
    # in one write: the output of two ranks may have no buffer
    sys.stdout.write(f"steps {trainer.global_step} vocabulary {len(tokenizer)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
    gloo.leave()
    sys.exit(3)
