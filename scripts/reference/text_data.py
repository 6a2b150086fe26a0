"""The corpus as blocks of tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from pytorch_lightning import LightningDataModule
from torch.utils.data import DataLoader, Dataset, get_worker_info

from reference.tokenizer import END_OF_TEXT, corpus_files

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from reference.arguments import Arguments
    from reference.injection import Injection

BLOCK_LENGTH = 64
VALIDATION_SHARE = 0.05


class TokenBlocks(Dataset[torch.Tensor]):
    """Blocks of ``BLOCK_LENGTH`` tokens; one can be read in a worker process."""

    def __init__(
        self, blocks: torch.Tensor, batch_size: int, injection: Injection | None = None
    ) -> None:
        self._blocks = blocks
        self._batch_size = batch_size
        self._injection = injection
        self._read = 0

    def __len__(self) -> int:
        return len(self._blocks)

    def __getitem__(self, index: int) -> torch.Tensor:
        """Return one block."""
        worker = get_worker_info()
        if worker is not None and self._injection is not None:
            batch = self._read // self._batch_size * worker.num_workers
            self._injection.in_worker(worker.id, batch)
        self._read += 1
        return self._blocks[index]


class CorpusDataModule(LightningDataModule):
    """Training and validation blocks of the shipped corpus."""

    def __init__(self, tokenizer: Tokenizer, arguments: Arguments, injection: Injection) -> None:
        super().__init__()
        self._tokenizer = tokenizer
        self._arguments = arguments
        self._injection = injection

    def setup(self, stage: str) -> None:
        """Tokenize the corpus and split it, alike on every rank."""
        texts = [path.read_text(encoding="utf-8") for path in corpus_files()]
        tokens = self._tokenizer.encode(END_OF_TEXT.join(texts)).ids
        whole = len(tokens) - len(tokens) % BLOCK_LENGTH
        blocks = torch.tensor(tokens[:whole]).view(-1, BLOCK_LENGTH)
        split = int(len(blocks) * (1 - VALIDATION_SHARE))
        batch_size = self._arguments.batch_size
        self._training = TokenBlocks(blocks[:split], batch_size, self._injection)
        self._validation = TokenBlocks(blocks[split:], batch_size)

    def train_dataloader(self) -> DataLoader[torch.Tensor]:
        """Shuffled blocks; Lightning gives each rank its share."""
        return self._load(self._training, shuffle=True)

    def val_dataloader(self) -> DataLoader[torch.Tensor]:
        """The last blocks of the corpus."""
        return self._load(self._validation, shuffle=False)

    def _load(self, dataset: TokenBlocks, *, shuffle: bool) -> DataLoader[torch.Tensor]:
        workers = self._arguments.num_workers
        return DataLoader(
            dataset,
            batch_size=self._arguments.batch_size,
            shuffle=shuffle,
            drop_last=shuffle,
            num_workers=workers,
            persistent_workers=workers > 0,
        )
