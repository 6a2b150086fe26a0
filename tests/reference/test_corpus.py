"""The shipped text and the tokenizer that is trained on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reference.tokenizer import END_OF_TEXT, VOCABULARY_SIZE, corpus_files, load_tokenizer

if TYPE_CHECKING:
    from pathlib import Path


def test_corpus_is_small_plain_text() -> None:
    texts = [path.read_text(encoding="ascii") for path in corpus_files()]
    assert 200_000 < sum(map(len, texts)) < 300_000


def test_tokenizer_is_trained_once_then_read(tmp_path: Path) -> None:
    first = load_tokenizer(tmp_path / "new")
    (file,) = (tmp_path / "new").iterdir()
    written = file.stat().st_mtime_ns
    second = load_tokenizer(tmp_path / "new")
    assert file.stat().st_mtime_ns == written
    assert first.to_str() == second.to_str()


def test_text_survives_the_tokenizer(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(tmp_path)
    text = corpus_files()[-1].read_text() + "Zoë ⇒ 42"
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids) == text
    assert len(ids) < len(text) / 2
    assert tokenizer.get_vocab_size() == VOCABULARY_SIZE
    assert tokenizer.token_to_id(END_OF_TEXT) == 0
