"""config.json under all its names, and one sentence for each that cannot be used."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from planning.planned import LLAMA_8B

from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.planning.config import find_config, read_config, read_fields

if TYPE_CHECKING:
    from pathlib import Path


def test_a_model_of_several_parts_is_planned_by_its_text_part() -> None:
    fields = read_fields({"model_type": "llava", "text_config": LLAMA_8B})
    assert (fields.model_type, fields.layers) == ("llama", 32)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hidden_size": None}, "no hidden_size (its model_type is 'llama')"),
        ({"num_hidden_layers": 0}, "no num_hidden_layers"),
        ({"vocab_size": "many"}, "vocab_size='many'"),
        ({"num_key_value_heads": True}, "num_key_value_heads=True"),
    ],
)
def test_a_size_that_cannot_be_is_one_sentence(changes: dict[str, object], said: str) -> None:
    with pytest.raises(BadUsage, match=r"config\.json has") as raised:
        read_fields({**LLAMA_8B, **changes})
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"{", "is not JSON"), (b"[1]", "holds no JSON object"), (b"", "is not JSON")],
)
def test_a_broken_file_is_one_sentence(content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(BadUsage, match=said) as raised:
        read_config(tmp_path / "config.json")
    assert "\n" not in str(raised.value)


def test_a_folder_or_its_config_is_found_and_a_folder_without_one_refused(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    with pytest.raises(BadUsage, match=r"has no config\.json"):
        find_config(str(tmp_path))
    config.write_text("{}")
    assert find_config(str(tmp_path)) == find_config(str(config)) == config
    assert find_config(str(tmp_path / "absent")) is None
