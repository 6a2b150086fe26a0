"""What a run reads: there, fresh, of one version, and of the model that will load it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from doctor.checkpoints import LARGE, SMALL, tensors_of, write_model, write_safetensors
from ledger.lines import begun, ended

from lightning_hangcheck.doctor.check import Subject
from lightning_hangcheck.doctor.data_checks import (
    FIT,
    files_belong_together,
    model_fits,
    needed_files,
)
from lightning_hangcheck.ledger import ledger_file
from lightning_hangcheck.ledger.ledger_file import fingerprint

if TYPE_CHECKING:
    from lightning_hangcheck.doctor.check import Finding

NOW = 1_800_000_000.0


def _subject(path: object, fresh_minutes: float | None = None) -> Subject:
    return Subject(
        environment={}, run_dir=Path("runs"), needs=(str(path),), fresh_minutes=fresh_minutes
    )


@pytest.fixture
def hour_old(tmp_path: Path) -> Path:
    file = tmp_path / "tokens.bin"
    file.write_bytes(b"x" * 2000)
    os.utime(file, (NOW - 3600, NOW - 3600))
    return file


@pytest.mark.parametrize(("fresh", "status"), [(None, "ok"), (90.0, "ok"), (30.0, "failed")])
def test_age_counts_only_where_freshness_is_asked(
    hour_old: Path, fresh: float | None, status: str
) -> None:
    (check,) = needed_files(_subject(hour_old, fresh), now=NOW)
    assert check.status == status
    assert "2.0 kB, 60 minutes old" in check.sentence


def test_of_a_folder_the_newest_file_counts(hour_old: Path) -> None:
    newer = hour_old.with_name("more.bin")
    newer.write_bytes(b"x")
    os.utime(newer, (NOW - 60, NOW - 60))
    (check,) = needed_files(_subject(hour_old.parent, 30.0), now=NOW)
    assert (check.status, "1 minutes old" in check.sentence) == ("ok", True)


def test_what_is_missing_or_empty_fails(tmp_path: Path) -> None:
    (missing,) = needed_files(_subject(tmp_path / "none"), now=NOW)
    assert (missing.status, missing.remedy) == ("failed", f"ls -l {tmp_path}")
    (tmp_path / "empty").touch()
    (empty,) = needed_files(_subject(tmp_path / "empty"), now=NOW)
    assert (empty.status, "is empty" in empty.sentence) == ("failed", True)


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
def test_files_as_their_phases_left_them_belong_together() -> None:
    (check,) = checks("tokens.bin", "labels.csv")
    assert check.status == "ok"
    assert "labels.csv by phase make labels.csv" in check.sentence


@pytest.mark.usefixtures("work")
def test_a_file_that_was_changed_since_is_told() -> None:
    Path("tokens.bin").write_text("somebody's own")
    (check,) = checks("tokens.bin", "labels.csv")
    assert check.status == "warning"
    assert "since phase make tokens.bin made it" in check.sentence
    assert check.remedy == "hangcheck ledger check 'make tokens.bin'"


@pytest.mark.usefixtures("work")
def test_files_of_two_versions_of_what_they_were_made_from_are_told() -> None:
    Path("raw.txt").write_text("second")
    make("labels.csv")
    together, old = checks("tokens.bin", "labels.csv")
    assert "tokens.bin and labels.csv were made from two versions of " in together.sentence
    assert old.sentence.startswith("tokens.bin was made from another version: ")


@pytest.mark.usefixtures("work")
def test_files_that_no_phase_made_are_not_asked_about() -> None:
    assert checks("raw.txt") == checks() == ()
    Path("ledger.jsonl").unlink()
    assert checks("tokens.bin") == ()


def _asked(loads: Path | str | None, backbone: Path | str | None, **environment: str) -> Subject:
    return Subject(
        environment=environment,
        run_dir=Path("runs"),
        loads=() if loads is None else (str(loads),),
        backbone=None if backbone is None else str(backbone),
    )


def _fit(loads: Path, backbone: Path) -> Finding:
    (check,) = (one for one in model_fits(_asked(loads, backbone)) if one.check == FIT)
    return check


def _whole(path: Path) -> Finding:
    (check,) = model_fits(_asked(path, None))
    return check


def _saved(file: Path, shapes: dict[str, tuple[int, ...]], **more: object) -> Path:
    torch.save({**{name: torch.zeros(shape) for name, shape in shapes.items()}, **more}, file)
    return file


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return write_model(tmp_path / "small-0.5B", SMALL, tokens=30)


@pytest.fixture
def large(tmp_path: Path) -> Path:
    return write_model(tmp_path / "large-1.5B", LARGE, tokens=30)


def test_a_model_fits_itself(small: Path) -> None:
    check = _fit(small, small)
    assert check.status == "ok"
    assert "the same sizes, 5 of 5 tensors compared, the same tokens" in check.sentence


@pytest.mark.parametrize("wrapper", ["", "state_dict.model.", "backbone.", "_orig_mod."])
def test_weights_alone_are_compared_whatever_wraps_them(
    tmp_path: Path, small: Path, large: Path, wrapper: str
) -> None:
    shapes = {wrapper + name: shape for name, shape in tensors_of(LARGE).items()}
    file = _saved(tmp_path / "model.pt", shapes)
    check = _fit(file, small)
    assert check.status == "failed"
    assert "embed_tokens.weight is 32 x 12, not 32 x 8" in check.sentence
    assert _fit(file, large).status == "ok"


def test_layers_that_the_backbone_does_not_have_are_told(tmp_path: Path, small: Path) -> None:
    file = _saved(tmp_path / "model.pt", tensors_of({**SMALL, "num_hidden_layers": 4}))
    check = _fit(file, small)
    assert (check.status, "2 layers more than it has" in check.sentence) == ("failed", True)


@pytest.mark.parametrize(("trained_on", "status"), [(SMALL, "ok"), (LARGE, "failed")])
def test_a_low_rank_adapter_is_compared_by_its_layers_sides(
    tmp_path: Path, small: Path, trained_on: dict[str, object], status: str
) -> None:
    hidden = int(str(trained_on["hidden_size"]))
    prefix = "base_model.model.model.layers.0.self_attn.q_proj"
    (tmp_path / "adapter").mkdir()
    shapes = {f"{prefix}.lora_A.weight": (2, hidden), f"{prefix}.lora_B.weight": (hidden, 2)}
    write_safetensors(tmp_path / "adapter" / "adapter_model.safetensors", shapes)
    check = _fit(tmp_path / "adapter", small)
    assert check.status == status
    assert "2 of 2 tensors" in check.sentence


def test_an_adapter_of_layers_that_are_stored_the_other_way_round_fits(tmp_path: Path) -> None:
    """GPT-2's Conv1D keeps inputs x outputs, where nn.Linear keeps outputs x inputs."""
    prefix = "transformer.h.0.attn.c_attn"
    (tmp_path / "gpt2").mkdir()
    write_safetensors(tmp_path / "gpt2" / "model.safetensors", {f"{prefix}.weight": (8, 24)})
    shapes = {f"{prefix}.lora_A.weight": (2, 8), f"{prefix}.lora_B.weight": (24, 2)}
    check = _fit(_saved(tmp_path / "adapter.pt", shapes), tmp_path / "gpt2")
    assert (check.status, "2 of 2 tensors" in check.sentence) == ("ok", True)


@pytest.mark.parametrize(("hidden", "status"), [(8, "ok"), (12, "warning")])
def test_modules_of_ones_own_must_take_the_backbones_vectors(
    tmp_path: Path, small: Path, hidden: int, status: str
) -> None:
    file = _saved(tmp_path / "model.pt", {"operator.proj.weight": (5, hidden)})
    check = _fit(file, small)
    assert check.status == status
    assert ("has a side of 8" in check.sentence) == (status == "warning")


def test_many_layers_of_ones_own_are_not_the_backbones(tmp_path: Path, small: Path) -> None:
    file = _saved(tmp_path / "head.pt", {f"net.layers.{n}.weight": (8, 8) for n in range(9)})
    assert _fit(file, small).status == "ok"


def test_what_a_trainer_noted_contradicts_the_backbone(tmp_path: Path, small: Path) -> None:
    noted = {"hyper_parameters": {"model_name": "Qwen/Qwen2.5-1.5B"}}
    file = _saved(tmp_path / "model.pt", {"head.weight": (3, 8)}, **noted)
    check = _fit(file, small)
    assert (check.status, "was trained on Qwen/Qwen2.5-1.5B" in check.sentence) == ("warning", True)
    assert "--backbone Qwen/Qwen2.5-1.5B" in check.remedy


def test_layers_of_a_module_of_another_name_are_not_the_backbones(
    tmp_path: Path, small: Path
) -> None:
    shapes = {"fusion.layers.7.self_attn.q_proj.weight": (5, 5), "proj.weight": (5, 8)}
    assert _fit(_saved(tmp_path / "model.pt", shapes), small).status == "ok"


@pytest.mark.parametrize(
    ("other", "status"), [("step_500/b.pt", None), ("step=400.ckpt", "warning"), ("b.pt", None)]
)
def test_checkpoints_of_several_steps_are_told(
    tmp_path: Path, other: str, status: str | None
) -> None:
    files = [tmp_path / "step_500" / "a.pt", tmp_path / other]
    for file in files:
        file.parent.mkdir(exist_ok=True)
        _saved(file, {"w": (1,)})
    run = Subject(environment={}, run_dir=tmp_path, loads=tuple(map(str, files)))
    found = [one.status for one in model_fits(run) if "several steps" in one.sentence]
    assert found == ([status] if status else [])


def test_another_tokenizer_is_told(tmp_path: Path, small: Path) -> None:
    other = write_model(tmp_path / "other", SMALL, tokens=31)
    check = _fit(other, small)
    assert (check.status, "31 and 30 tokens" in check.sentence) == ("warning", True)


def test_a_tokenizer_with_more_tokens_than_rows_is_told(tmp_path: Path) -> None:
    check = _whole(write_model(tmp_path / "model", SMALL, tokens=40))
    assert check.status == "warning"
    assert "tokens go up to 39, the embedding has 32 rows" in check.sentence


def test_a_part_that_is_missing_is_named(small: Path) -> None:
    parts = {"model.embed_tokens.weight": "model.safetensors", "more": "model-2.safetensors"}
    (small / "model.safetensors.index.json").write_text(json.dumps({"weight_map": parts}))
    check = _whole(small)
    assert check.status == "failed"
    assert "model-2.safetensors is missing" in check.sentence


def test_an_index_of_files_that_nobody_would_load_does_not_count(small: Path) -> None:
    """Folders on the hub have weights in both formats, and often only one is fetched."""
    parts = {"model.embed_tokens.weight": "pytorch_model-1.bin"}
    (small / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": parts}))
    assert _whole(small).status == "ok"


def test_parts_of_a_format_that_is_not_known_miss_nothing(small: Path) -> None:
    (small / "model.safetensors").unlink()
    part = small / "pytorch_model-1.bin"
    torch.save({"a.weight": torch.ones(5)}, part, _use_new_zipfile_serialization=False)
    index = json.dumps({"weight_map": {"a.weight": part.name}})
    (small / "pytorch_model.bin.index.json").write_text(index)
    assert _whole(small).status == "ok"


def test_a_tensor_that_no_part_holds_is_named(small: Path) -> None:
    parts = {"model.norm.weight": "model.safetensors"}
    (small / "model.safetensors.index.json").write_text(json.dumps({"weight_map": parts}))
    check = _whole(small)
    assert (check.status, "model.norm.weight" in check.sentence) == ("failed", True)


def test_a_file_that_is_cut_off_is_named(small: Path) -> None:
    file = small / "model.safetensors"
    os.truncate(file, file.stat().st_size - 1)
    check = _whole(small)
    assert (check.status, "model.safetensors: it is cut off" in check.sentence) == ("failed", True)


def test_weights_of_another_model_than_config_json_says_are_told(small: Path) -> None:
    write_safetensors(small / "model.safetensors", tensors_of(LARGE))
    check = _whole(small)
    assert check.status == "failed"
    assert "by config.json, model.embed_tokens.weight is 32 x 12, not 32 x 8" in check.sentence


def test_a_backbone_may_be_named_as_on_the_hub(tmp_path: Path, large: Path) -> None:
    write_model(tmp_path / "models--Org--Small-0.5B" / "snapshots" / "abc", SMALL)
    asked = _asked(large, "Org/Small-0.5B", HF_HUB_CACHE=str(tmp_path))
    assert [one.status for one in model_fits(asked)] == ["ok", "ok", "failed"]


def test_what_is_not_here_fails(tmp_path: Path) -> None:
    (check,) = model_fits(_asked(tmp_path / "none.pt", None))
    assert (check.status, "is not here" in check.sentence) == ("failed", True)
    (named,) = model_fits(_asked(None, "Org/None", HF_HUB_CACHE=str(tmp_path)))
    assert "hf download Org/None" in named.remedy


def test_the_configuration_alone_tells_too(tmp_path: Path, small: Path) -> None:
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "config.json").write_text((small / "config.json").read_text())
    file = _saved(tmp_path / "model.pt", tensors_of(LARGE))
    assert _fit(file, tmp_path / "hub").status == "failed"
    assert _fit(_saved(file, tensors_of(SMALL)), tmp_path / "hub").status == "ok"


def test_a_whole_model_is_fine(small: Path) -> None:
    check = _whole(small)
    assert (check.status, "5 tensors in 1 file, 30 tokens" in check.sentence) == ("ok", True)
