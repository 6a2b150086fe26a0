"""What a run reads: there, fresh, of one version, and of a model that fits into its memory."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy
import pytest
import torch
from ledger.lines import begun, ended
from planning.planned import LLAMA_8B, machine
from planning.tiny_models import real_model, save_config
from safetensors.numpy import save_file
from subjects import loading

from lightning_hangcheck.doctor.check import Subject
from lightning_hangcheck.doctor.data_checks import (
    FIT,
    CannotBeRead,
    files_belong_together,
    model_fits,
    needed_files,
    read_weight_file,
)
from lightning_hangcheck.doctor.memory_checks import find_machine, model_memory
from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.ledger import ledger_file
from lightning_hangcheck.ledger.ledger_file import fingerprint
from lightning_hangcheck.look.gpu import gpu_memory

if TYPE_CHECKING:
    from lightning_hangcheck.doctor.check import Finding
    from lightning_hangcheck.planning.plan import Machine

NOW = 1_800_000_000.0
Shapes = dict[str, tuple[int, ...]]
SMALL: dict[str, object] = {
    "model_type": "qwen2",
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 16,
    "vocab_size": 32,
    "tie_word_embeddings": True,
}
LARGE = {**SMALL, "hidden_size": 12, "num_hidden_layers": 3, "intermediate_size": 24}
"""Another size of the same family, as Qwen2.5-1.5B is of 0.5B."""


def tensors_of(config: dict[str, object]) -> Shapes:
    """Some tensors of each layer, by transformers' names."""
    hidden, wide = int(str(config["hidden_size"])), int(str(config["intermediate_size"]))
    shapes: Shapes = {"model.embed_tokens.weight": (int(str(config["vocab_size"])), hidden)}
    for layer in range(int(str(config["num_hidden_layers"]))):
        shapes[f"model.layers.{layer}.self_attn.q_proj.weight"] = (hidden, hidden)
        shapes[f"model.layers.{layer}.mlp.up_proj.weight"] = (wide, hidden)
    return shapes


def write_safetensors(file: Path, shapes: Shapes) -> None:
    """Zeros of these shapes."""
    save_file({name: numpy.zeros(shape, numpy.float32) for name, shape in shapes.items()}, file)


def write_model(folder: Path, config: dict[str, object], tokens: int | None = None) -> Path:
    """A folder as save_pretrained leaves it."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    write_safetensors(folder / "model.safetensors", tensors_of(config))
    if tokens is not None:
        vocabulary = {"model": {"vocab": {f"t{number}": number for number in range(tokens)}}}
        (folder / "tokenizer.json").write_text(json.dumps(vocabulary))
    return folder


@pytest.mark.parametrize(
    ("need", "fresh", "status", "said"),
    [
        ("tokens.bin", None, "ok", "2.0 kB, 60 minutes old"),
        ("tokens.bin", 30.0, "failed", "60 minutes old, more than the 30 minutes of --fresh"),
        (".", 30.0, "ok", "1 minutes old"),  # of a folder the newest file counts
        ("none", None, "failed", "is not there"),
        ("empty", None, "failed", "is empty"),
    ],
)
def test_what_is_needed_must_be_there_and_fresh_where_that_isloading(
    tmp_path: Path, need: str, fresh: float | None, status: str, said: str
) -> None:
    for name, size, age_s in (("tokens.bin", 2000, 3600), ("more.bin", 1, 60), ("empty", 0, 90)):
        (tmp_path / name).write_bytes(b"x" * size)
        os.utime(tmp_path / name, (NOW - age_s, NOW - age_s))
    needs = (str(tmp_path / need),)
    run = Subject(environment={}, run_dir=tmp_path, needs=needs, fresh_minutes=fresh)
    (check,) = needed_files(run, now=NOW)
    assert (check.status, said in check.found) == (status, True), check.found
    assert bool(check.remedy) == (status == "failed")


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two phases, each of which made one file from the same one."""
    monkeypatch.chdir(tmp_path)
    Path("raw.txt").write_text("first")
    for name in ("tokens.bin", "labels.csv"):
        make(name)
    return tmp_path


def make(name: str) -> None:
    Path(name).write_text(f"made of {Path('raw.txt').read_text()}")
    ledger = ledger_file.find_ledger("ledger.jsonl")
    ledger_file.append(ledger, begun(name, f"make {name}", fingerprint("raw.txt")))
    ledger_file.append(ledger, ended(name, fingerprint(name)))


def checks(*needs: str) -> tuple[Finding, ...]:
    environment = {"HANGCHECK_LEDGER": "ledger.jsonl"}
    return files_belong_together(
        Subject(environment=environment, run_dir=Path("runs"), needs=needs)
    )


@pytest.mark.usefixtures("work")
def test_files_belong_together_as_long_as_they_are_as_their_phases_left_them() -> None:
    (check,) = checks("tokens.bin", "labels.csv")
    assert (check.status, "labels.csv by phase make labels.csv" in check.found) == ("ok", True)
    Path("tokens.bin").write_text("somebody's own")
    (check,) = checks("tokens.bin", "labels.csv")
    assert check.status == "warning"
    assert "since phase make tokens.bin made it" in check.found
    assert check.remedy == "hangcheck ledger check 'make tokens.bin'"


@pytest.mark.usefixtures("work")
def test_files_of_two_versions_of_what_they_were_made_from_are_told() -> None:
    Path("raw.txt").write_text("second")
    make("labels.csv")
    together, old = checks("tokens.bin", "labels.csv")
    assert "tokens.bin and labels.csv were made from two versions of " in together.found
    assert old.found.startswith("tokens.bin was made from another version: ")


def _fit(loads: Path, backbone: Path) -> Finding:
    (check,) = (one for one in model_fits(loading(loads, backbone)) if one.check == FIT)
    return check


def _whole(path: Path) -> Finding:
    (check,) = model_fits(loading(path))
    return check


def _saved(file: Path, shapes: dict[str, tuple[int, ...]], **more: object) -> Path:
    tensors = {name: torch.nn.Parameter(torch.zeros(shape)) for name, shape in shapes.items()}
    torch.save({**tensors, **more}, file)
    return file


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return write_model(tmp_path / "small-0.5B", SMALL, tokens=30)


@pytest.fixture
def large(tmp_path: Path) -> Path:
    return write_model(tmp_path / "large-1.5B", LARGE, tokens=30)


def _adapter(hidden: int) -> dict[str, tuple[int, ...]]:
    prefix = "base_model.model.model.layers.0.self_attn.q_proj"
    return {f"{prefix}.lora_A.weight": (2, hidden), f"{prefix}.lora_B.weight": (hidden, 2)}


CHECKPOINTS = {
    "of the same size": (tensors_of(SMALL), "ok", "5 of 5 tensors"),
    "of another size": (tensors_of(LARGE), "failed", "embed_tokens.weight is 32 x 12, not 32 x 8"),
    "of an adapter": (_adapter(8), "ok", "2 of 2 tensors"),
    "a module for other vectors": (
        {"operator.proj.weight": (5, 12)},
        "ok",
        "no tensor could be compared",
    ),
    "many layers of one's own": (
        {f"net.layers.{number}.weight": (8, 8) for number in range(9)},
        "ok",
        "",
    ),
    "layers within a module of another name": (
        {"fusion.layers.7.self_attn.q_proj.weight": (5, 5), "proj.weight": (5, 8)},
        "ok",
        "",
    ),
}


@pytest.mark.parametrize("wrapper", ["", "state_dict.model.", "_orig_mod."])
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_weights_are_compared_with_the_backbones_whatever_wraps_them(
    tmp_path: Path, small: Path, name: str, wrapper: str
) -> None:
    shapes, status, said = CHECKPOINTS[name]
    check = _fit(_saved(tmp_path / "a.pt", {wrapper + n: s for n, s in shapes.items()}), small)
    assert (check.status, said in check.found) == (status, True), check.found


def test_a_tokenizer_with_more_tokens_than_rows_is_told(tmp_path: Path) -> None:
    check = _whole(write_model(tmp_path / "model", SMALL, tokens=40))
    assert check.status == "warning"
    assert "tokens go up to 39, the embedding has 32 rows" in check.found


@pytest.mark.parametrize(
    ("index", "tensor", "file", "complaint"),
    [
        ("model.safetensors", "model.norm.weight", "model.safetensors", "model.norm.weight"),
        # folders on the hub have weights in both formats, and often only one is fetched
        ("pytorch_model.bin", "model.embed_tokens.weight", "pytorch_model-1.bin", ""),
    ],
)
def test_what_an_index_of_loaded_files_names_must_be_there(
    small: Path, index: str, tensor: str, file: str, complaint: str
) -> None:
    (small / f"{index}.index.json").write_text(json.dumps({"weight_map": {tensor: file}}))
    check = _whole(small)
    assert (check.status, complaint in check.found) == ("failed" if complaint else "ok", True)


def test_weights_of_another_model_than_config_json_says_are_told(small: Path) -> None:
    write_safetensors(small / "model.safetensors", tensors_of(LARGE))
    check = _whole(small)
    assert check.status == "failed"
    assert "by config.json, model.embed_tokens.weight is 32 x 12, not 32 x 8" in check.found


def test_what_is_not_here_fails(tmp_path: Path) -> None:
    (check,) = model_fits(loading(tmp_path / "none.pt"))
    assert (check.status, "is not here" in check.found) == ("failed", True)
    (named,) = model_fits(loading(None, "Org/None", HF_HUB_CACHE=str(tmp_path)))
    assert "hf download Org/None" in named.remedy


class _Foreign:
    """What somebody may hide in a file of torch."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.mark),)


def test_foreign_code_in_a_file_is_not_run(tmp_path: Path) -> None:
    mark = tmp_path / "was-run"
    torch.save({"w": torch.ones(5), "e": _Foreign(mark)}, tmp_path / "a.pt")
    assert read_weight_file(tmp_path / "a.pt") == {"w": (5,)}
    assert not mark.exists()
    torch.load(tmp_path / "a.pt", weights_only=False)
    assert mark.exists()  # it would have been


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.safetensors", b"", "empty"),
        ("a.safetensors", POINTER, "git lfs pull"),
        ("a.safetensors", b"\x04\0\0\0\0\0\0\0nope", "damaged"),
        ("a.ckpt", b"PK\x03\x04", "cut off"),
    ],
)
def test_a_file_that_cannot_be_weights_says_so(
    tmp_path: Path, name: str, content: bytes, said: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CannotBeRead, match=said):
        read_weight_file(tmp_path / name)


LARGER = {"gpt2": {"n_embd": 128}, "t5": {"d_model": 128}}
OF_KNOWN_LAYERS = ("mixtral", "gpt2")
"""Families of which config.json alone tells shapes."""


# what transformers warns of while it is imported is its own
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", ["gpt2", "mixtral", "t5"])
def test_a_real_model_belongs_to_itself_and_to_no_other_size(family: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers", exc_type=ImportError)
    config = save_config(family, tmp_path / "config")
    model = real_model(config, "float32")
    model.save_pretrained(tmp_path / "whole")
    model.save_pretrained(tmp_path / "parts", max_shard_size="60KB")
    torch.save({"state_dict": model.state_dict()}, tmp_path / "model.ckpt")
    other = save_config(family, tmp_path / "other", **LARGER.get(family, {"hidden_size": 128}))
    for saved in (tmp_path / "whole", tmp_path / "parts", tmp_path / "model.ckpt"):
        for backbone in (tmp_path / "whole", config):
            told = model_fits(loading(saved, backbone))
            assert {one.status for one in told} == {"ok"}, told
    for name in ("whole", "model.ckpt") if family in OF_KNOWN_LAYERS else ("whole",):
        told = model_fits(loading(tmp_path / name, other))
        assert [one.status for one in told if one.check == FIT] == ["failed"]


# What doctor says of memory, and of weights that are to be loaded.


@pytest.fixture
def llama(tmp_path: Path) -> str:
    pytest.importorskip("accelerate")
    pytest.importorskip("transformers", exc_type=ImportError)
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA_8B, "dtype": "bfloat16"}))
    return str(tmp_path)


def _check(backbone: str, on: Machine) -> Finding:
    run = Subject(environment={}, run_dir=Path("runs"), backbone=backbone)
    (check,) = model_memory(run, machine=on)
    return check


@pytest.mark.real
@pytest.mark.parametrize(
    ("gpu_gb", "status", "advised"), [(24, "ok", ""), (16, "warning", "8-bit"), (0.2, "failed", "")]
)
def test_what_must_be_carried_is_a_warning_and_what_cannot_be_fails(
    llama: str, gpu_gb: float, status: str, advised: str
) -> None:
    """Only what would really help is advised."""
    check = _check(llama, machine(gpu_gb))
    assert check.status == status, check.found
    assert "16.1 GB in bfloat16" in check.found
    assert ("hangcheck plan" in check.remedy) == (status != "ok")
    assert ("--dtype int8 (fast)" in check.remedy) == (advised == "8-bit")


@pytest.mark.real
def test_without_a_gpu_nothing_fails(llama: str) -> None:
    check = _check(llama, machine(cpu_gb=4))
    assert check.status == "warning"
    assert "no GPU was found here" in check.found


@pytest.mark.skipif(isinstance(gpu_memory(), tuple) and bool(gpu_memory()), reason="has a GPU")
@pytest.mark.parametrize("arguments", [(None, None), (2, None), (None, 80)])
def test_without_a_gpu_one_sentence_says_what_to_type(
    arguments: tuple[int | None, float | None],
) -> None:
    with pytest.raises(BadUsage, match="no GPU was found here") as raised:
        find_machine(*arguments)
    assert "--gpus 2 --gpu-memory 80" in str(raised.value)
