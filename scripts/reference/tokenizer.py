"""A byte-level BPE tokenizer, trained on the corpus at first use."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY_SIZE = 2048
END_OF_TEXT = "<|end|>"
CORPUS = Path(__file__).parent / "corpus"


def corpus_files() -> list[Path]:
    """Return the texts that are shipped with the project, in a fixed order."""
    return sorted(CORPUS.glob("*.txt"))


def load_tokenizer(folder: Path) -> Tokenizer:
    """Load the tokenizer from the folder, or train it and keep it there.

    Several processes may do this at once: the file appears whole or not at all.

    Args:
        folder: Made if it is not there.
    """
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in corpus_files()))
    file = folder / f"bpe-{VOCABULARY_SIZE}-{digest.hexdigest()[:12]}.json"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_suffix(f".{os.getpid()}")
        _train().save(str(unfinished))
        unfinished.replace(file)
    return Tokenizer.from_file(str(file))


def _train() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train([str(path) for path in corpus_files()], trainer)
    return tokenizer
