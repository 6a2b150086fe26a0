"""A GPT-2 of about one million parameters, built from its configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from pytorch_lightning import LightningModule
from torch.nn import functional
from transformers import GPT2Config, GPT2LMHeadModel

from reference.text_data import BLOCK_LENGTH

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from reference.injection import Injection

LEARNING_RATE = 1e-3


def create_model(tokenizer: Tokenizer, end_of_text: str) -> GPT2LMHeadModel:
    """Build the model; nothing is downloaded."""
    end = tokenizer.token_to_id(end_of_text)
    configuration = GPT2Config(
        vocab_size=tokenizer.get_vocab_size(),
        n_positions=BLOCK_LENGTH,
        n_embd=128,
        n_layer=4,
        n_head=4,
        bos_token_id=end,
        eos_token_id=end,
        use_cache=False,
    )
    return GPT2LMHeadModel(configuration)


class LLMModule(LightningModule):
    """Trains the language model with AdamW."""

    def __init__(self, model: GPT2LMHeadModel, injection: Injection) -> None:
        super().__init__()
        self.model = model
        self._injection = injection

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        """Return the loss of predicting each next token."""
        self._injection.before_step(self.global_step)
        loss = self._loss(batch)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        """Log the loss, averaged over the ranks."""
        self.log("val_loss", self._loss(batch), sync_dist=True)

    def _loss(self, tokens: torch.Tensor) -> torch.Tensor:
        logits = self.model(input_ids=tokens).logits
        return functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW over all parameters."""
        return torch.optim.AdamW(self.parameters(), lr=LEARNING_RATE)
