"""The checkpoint that a run loads: are its files whole, and does it belong to its backbone?

"Trained on Qwen2.5-1.5B, evaluated on 0.5B" costs a run that fails late, or one that goes on with
weights that were never trained.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from lightning_hangcheck.doctor.check import Check
from lightning_hangcheck.doctor.needed.backbone_fit import (
    compare_configs,
    compare_shapes,
    has_side,
    layers_beyond,
    sizes_in_names_differ,
)
from lightning_hangcheck.doctor.needed.model_files import (
    ModelFiles,
    find_model,
    read_model_files,
)
from lightning_hangcheck.files.apart import NoAnswerFromStorage, apart
from lightning_hangcheck.text.amounts import several

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lightning_hangcheck.doctor.subject import Subject

FILES = "model's files"
FIT = "checkpoint's backbone"
TIME_LIMIT_S = 20.0
"""Of one model: headers of 100 files on a slow network disk, and a tokenizer of 33 MB (1 s)."""
MOST_SHOWN = 3
STEP = re.compile(r"(?:step|checkpoint)[_=-]?(\d+|final)", re.IGNORECASE)
"""As Lightning (step=500), transformers (checkpoint-500) and most scripts name them."""


class _Named(NamedTuple):
    """A model or checkpoint by the name that the user gave it, and what its files say."""

    name: str
    files: ModelFiles


def model_fits(subject: Subject) -> tuple[Check, ...]:
    """Read the checkpoint and the backbone, each for itself, then compare them.

    Args:
        subject: The run.
    """
    names = dict.fromkeys(filter(None, (*subject.loads, subject.backbone)))
    read = {name: _read(name, subject.environment) for name in names}
    checks = [one if isinstance(one, Check) else _whole(one) for one in read.values()]
    checks += _of_one_step([name for name in subject.loads if name in read])
    backbone = read.get(subject.backbone or "")
    if isinstance(backbone, _Named):
        loaded = (read[name] for name in subject.loads)
        checks += [_fit(one, backbone) for one in loaded if isinstance(one, _Named)]
    return tuple(checks)


def _of_one_step(names: Sequence[str]) -> list[Check]:
    """Warn of checkpoints that are loaded together, and by their names are of other steps."""
    steps = {name: found[-1] for name in names if (found := STEP.findall(name))}
    if len(set(steps.values())) < 2:
        return []
    told = ", ".join(f"{name} (step {step})" for name, step in steps.items())
    sentence = f"checkpoints of several steps are loaded together: {told}"
    return [Check(FILES, "warning", sentence, "name those of one step: --loads step_N/...")]


def _read(name: str, environment: Mapping[str, str]) -> _Named | Check:
    """Return what its files say, or the check that says why they cannot."""
    try:
        return _Named(
            name, apart(TIME_LIMIT_S, lambda: read_model_files(find_model(name, environment)))
        )
    except FileNotFoundError:
        remedy = f"correct its name, or fetch it: hf download {name}"
        return Check(FILES, "failed", f"{name} is not here", remedy)
    except (OSError, NoAnswerFromStorage) as error:
        return Check(FILES, "failed", f"{name} cannot be read: {error}", f"ls -l {name}")


def _whole(one: _Named) -> Check:
    """Whether the files of one model belong together."""
    files = one.files
    complaints = [*files.complaints, *_own_mismatches(files)]
    tokens = _too_many_tokens(files, files)
    if tokens and not complaints:
        sentence = f"{one.name}: {tokens}: such a token ends a run on a GPU without a clear word"
        remedy = "model.resize_token_embeddings(len(tokenizer)), or fetch the tokenizer once more"
        return Check(FILES, "warning", sentence, remedy)
    if complaints:
        sentence = f"{one.name}: {_some(complaints)}"
        return Check(FILES, "failed", sentence, f"save or fetch it once more: {one.name}")
    if not files.shapes and files.fields is None:
        sentence = f"{one.name}: neither weights nor config.json of a known format"
        return Check(FILES, "warning", sentence, f"look what is there: ls -l {one.name}")
    told = [
        several(len(files.shapes), "tensor") + f" in {several(files.files, 'file')}"
        if files.shapes
        else "config.json alone",
        f"{files.vocabulary.tokens} tokens" if files.vocabulary else "",
        f"trained on {files.base}" if files.base else "",
    ]
    return Check(FILES, "ok", f"{one.name}: {', '.join(filter(None, told))}")


def _own_mismatches(files: ModelFiles) -> list[str]:
    """Say where weights, config.json and tokenizer of one folder are not of one model."""
    compared, differing = compare_shapes(files, ModelFiles(fields=files.fields))
    found = [f"by config.json, {one}" for one in differing]
    beyond = layers_beyond(files, files)
    if beyond and compared:
        found.append(f"the weights have {several(beyond, 'layer')} more than config.json says")
    return found


def _too_many_tokens(checkpoint: ModelFiles, backbone: ModelFiles) -> str:
    vocabulary, fields = checkpoint.vocabulary, backbone.fields
    if vocabulary is None or fields is None or vocabulary.rows <= fields.vocabulary:
        return ""
    return f"tokens go up to {vocabulary.rows - 1}, the embedding has {fields.vocabulary} rows"


def _fit(checkpoint: _Named, backbone: _Named) -> Check:
    """Whether a checkpoint belongs to the backbone that will load it."""
    files, model = checkpoint.files, backbone.files
    compared, differing = compare_shapes(files, model)
    problems = []
    if files.fields is not None and model.fields is not None:
        problems += compare_configs(files.fields, model.fields)
    beyond = layers_beyond(files, model)
    if beyond and compared and not problems:
        problems.append(f"{several(beyond, 'layer')} more than it has")
    if differing:
        problems.append(f"{len(differing)} of {compared} tensors differ: {_some(differing)}")
    tokens = _too_many_tokens(files, model)
    if tokens and files.fields is None:
        problems.append(tokens)
    since = f" (trained on {files.base})" if files.base else ""
    if problems:
        sentence = f"{checkpoint.name}{since} does not belong to {backbone.name}: {_some(problems)}"
        return Check(FIT, "failed", sentence, _remedy(checkpoint, backbone))
    doubt = _doubt(checkpoint, backbone, compared)
    if doubt:
        return Check(FIT, "warning", doubt, _remedy(checkpoint, backbone))
    agrees = _what_agrees(files, model, compared)
    return Check(FIT, "ok", f"{checkpoint.name}{since} fits {backbone.name}: {agrees}")


def _doubt(checkpoint: _Named, backbone: _Named, compared: int) -> str:
    """Say what contradicts the two without a tensor that proves it."""
    files, model = checkpoint.files, backbone.files
    if sizes_in_names_differ(files.base, backbone.name):
        return f"{checkpoint.name} was trained on {files.base}, and {backbone.name} shall load it"
    theirs, ours = files.vocabulary, model.vocabulary
    if theirs and ours and theirs.digest != ours.digest:
        tokens = f"{theirs.tokens} and {ours.tokens} tokens"
        return f"{checkpoint.name} and {backbone.name} have different tokenizers ({tokens})"
    if compared or not files.shapes or model.fields is None:
        return ""
    if has_side(files, model.fields.hidden):
        return ""
    number = several(len(files.shapes), "tensor")
    side = f"a side of {model.fields.hidden}, the hidden size of {backbone.name}"
    return f"none of the {number} of {checkpoint.name} has {side}"


def _remedy(checkpoint: _Named, backbone: _Named) -> str:
    trained_on = checkpoint.files.base or "MODEL-IT-WAS-TRAINED-ON"
    return (
        f"load it into the model it was trained on: --backbone {trained_on},\n"
        f"or load what was trained on this one: --loads CHECKPOINT-OF-{Path(backbone.name).name}"
    )


def _what_agrees(files: ModelFiles, model: ModelFiles, compared: int) -> str:
    alike = f"{compared} of {several(len(files.shapes), 'tensor')} compared"
    said = [
        "the same sizes" if files.fields and model.fields else "",
        alike if compared else "",
        "the same tokens" if files.vocabulary and model.vocabulary else "",
    ]
    return (
        ", ".join(filter(None, said)) or "nothing contradicts it, but no tensor could be compared"
    )


def _some(sentences: list[str]) -> str:
    more = len(sentences) - MOST_SHOWN
    shown = "; ".join(sentences[:MOST_SHOWN])
    return f"{shown}; and {more} more" if more > 0 else shown
