"""What the run reads: is it there, is it whole, does it belong together, is it of today?

"Trained on Qwen2.5-1.5B, evaluated on 0.5B" costs a run that fails late, or one that goes on with
weights that were never trained. A tensor is compared with the one that the backbone's own weights
have under that name, else with the shape that its config.json asks for.
"""

from __future__ import annotations

import re
import time
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck.doctor.check import Finding, check, failed, ok, warning
from lightning_hangcheck.doctor.weights import ModelFiles, Shape, find_model, read_model_files
from lightning_hangcheck.files.apart import NoAnswerFromStorage, apart
from lightning_hangcheck.ledger.ledger_file import difference, fingerprint
from lightning_hangcheck.ledger.phase_history import tell
from lightning_hangcheck.planning.config import FAMILIES
from lightning_hangcheck.text.shown import bytes_in_words, several

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lightning_hangcheck.doctor.check import Subject
    from lightning_hangcheck.ledger.phase_history import PhaseStory
    from lightning_hangcheck.planning.config import Fields

FILE_LIMIT_S = 3.0
FIRST_BYTES = 4096
FINGERPRINTS_LIMIT_S = 20.0
"""For fingerprints of all files: of each at most 64 MiB are read."""
MODEL_LIMIT_S = 20.0
"""Of one model: headers of 100 files on a slow network disk, and a tokenizer of 33 MB (1 s)."""
FIT = "checkpoint's backbone"
MOST_SHOWN = 3
STEP = re.compile(r"(?:step|checkpoint)[_=-]?(\d+|final)", re.IGNORECASE)
"""As Lightning (step=500), transformers (checkpoint-500) and most scripts name them."""
SIZES = {
    "model_type": "model type",
    "hidden": "hidden size",
    "layers": "layers",
    "heads": "attention heads",
    "kv_heads": "key and value heads",
    "head_dim": "head width",
    "intermediate": "feed-forward width",
    "vocabulary": "vocabulary",
}
"""By the field of `Fields`, in words."""
LORA = re.compile(r"\.lora_([AB])(?:\.\w+)?\.weight$")
"""peft's names: A takes what the layer takes, B gives what the layer gives."""
LAYER = re.compile(r"(?:layers|h)\.(\d+)\.")
WRAPPERS = re.compile(
    r"(?:(?:state_dict|model_state_dict|model|module|base_model|backbone|llm|language_model"
    r"|transformer|net|_orig_mod|_forward_module|_fsdp_wrapped_module)\.)*"
)
"""Words that trainers, compilers and scripts put before a tensor's own name; a module of another
name may hold layers of its own, so its tensors are not taken for the backbone's."""
BILLIONS = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)[bB](?![\w.])")
"""The size in a model's name, Qwen2.5-1.5B; not the 2.5."""


@check(
    "data",
    "a rank that finds nothing, or yesterday's file, fails or waits while the others go on",
    limit_s=30.0,
)
def needed_files(subject: Subject, now: float | None = None) -> Iterator[Finding]:
    """Each file or folder named by --needs, and its age where --fresh is given."""
    clock = time.time() if now is None else now

    def size_and_time(path: Path) -> tuple[int, float]:
        """Bytes, and when it was changed; of a folder the newest that lies in it counts."""
        if path.is_dir():
            inside = [one.stat() for one in path.iterdir()]
            newest = max((one.st_mtime for one in inside), default=path.stat().st_mtime)
            return sum(one.st_size for one in inside), newest
        with path.open("rb") as file:
            file.read(FIRST_BYTES)
        state = path.stat()
        return state.st_size, state.st_mtime

    for path in map(Path, subject.needs):
        try:
            size, changed_at = apart(FILE_LIMIT_S, lambda path=path: size_and_time(path))  # type: ignore[misc]
        except FileNotFoundError:
            yield failed(f"{path} is not there", f"ls -l {path.parent}")
            continue
        except (OSError, NoAnswerFromStorage) as error:
            yield failed(f"{path} cannot be read: {error}", f"ls -l {path}")
            continue
        minutes, limit = max(0.0, (clock - changed_at) / 60), subject.fresh_minutes
        age = f"{minutes:.0f} minutes" if minutes < 120 else f"{minutes / 60:.0f} h"
        age = age if minutes < 2880 else f"{minutes / 1440:.0f} days"
        found = f"{path}: {bytes_in_words(size)}, {age} old"
        if not size:
            yield failed(f"{path} is empty", advice=f"make it anew: {path}")
        elif limit is not None and minutes > limit:
            sentence = f"{found}, more than the {limit:g} minutes of --fresh"
            yield failed(sentence, advice=f"make it anew: {path}")
        else:
            yield ok(found)


@check(
    "data",
    "labels of one version beside tokens of another train without an error, and for nothing",
    limit_s=FINGERPRINTS_LIMIT_S + 4.0,
)
def files_belong_together(subject: Subject) -> tuple[Finding, ...]:
    """What the ledger tells of the phases that made what --needs names, and from what."""
    phases = [one for one in tell(subject.ledger()).phases if one.counts] if subject.needs else []
    made: dict[str, PhaseStory] = {}
    for path in subject.needs:
        whole = str(Path(path).absolute())
        for phase in phases:  # the newest one that made it counts
            if any(one.path == whole for one in phase.outputs):
                made[path] = phase
    if not made:
        return ()
    try:
        found = apart(FINGERPRINTS_LIMIT_S, lambda: list(_of_other_versions(made)))
    except (OSError, NoAnswerFromStorage) as error:
        return (warning(f"they cannot be compared: {error}", "ls -l"),)
    told = ", ".join(f"{path} by phase {phase.name}" for path, phase in made.items())
    return tuple(
        warning(problem, f"hangcheck ledger check {quote(phase)}") for problem, phase in found
    ) or (ok(f"as they were made: {told}"),)


def _of_other_versions(made: Mapping[str, PhaseStory]) -> Iterator[tuple[str, str]]:
    """Each problem in one sentence, with the phase to look at."""
    for path, phase in made.items():
        whole = str(Path(path).absolute())
        left = next(one for one in phase.outputs if one.path == whole)
        if changed := difference(left, fingerprint(whole)):
            yield f"{changed}, since phase {phase.name} made it", phase.name
    first: dict[str, tuple[str, str]] = {}
    for path, phase in made.items():
        for used in phase.inputs:
            other, digest = first.setdefault(used.path, (path, used.digest))
            if digest != used.digest:
                yield f"{other} and {path} were made from two versions of {used.path}", phase.name
    for path, phase in made.items():
        for used in phase.inputs:
            if changed := difference(used, fingerprint(used.path)):
                yield f"{path} was made from another version: {changed}", phase.name


@check(
    "data",
    "a checkpoint of another backbone fails late, or leaves weights as they were at random",
    name="model's files",
    limit_s=2 * MODEL_LIMIT_S,
)
def model_fits(subject: Subject) -> Iterator[Finding]:
    """Config.json, headers of the weights and tokenizer.json of --loads and of --backbone."""
    read: dict[str, ModelFiles] = {}
    with suppress(ImportError):  # before the fork that reads, where an import could lock
        import safetensors.numpy  # noqa: F401 - as said
    for name in dict.fromkeys(filter(None, (*subject.loads, subject.backbone))):
        try:
            files = apart(
                MODEL_LIMIT_S,
                lambda name=name: read_model_files(find_model(name, subject.environment)),  # type: ignore[misc]
            )
        except FileNotFoundError:
            correct = "correct its name, or fetch it:"
            yield failed(f"{name} is not here", f"hf download {name}", advice=correct)
        except (OSError, NoAnswerFromStorage) as error:
            yield failed(f"{name} cannot be read: {error}", f"ls -l {name}")
        else:
            read[name] = replace(files, name=name)
            yield _whole(read[name])
    # checkpoints that are loaded together, and by their names are of other steps
    steps = {name: found[-1] for name in subject.loads if (found := STEP.findall(name))}
    if len(set(steps.values())) > 1:
        told = ", ".join(f"{name} (step {step})" for name, step in steps.items())
        sentence = f"checkpoints of several steps are loaded together: {told}"
        yield warning(sentence, advice="name those of one step: --loads step_N/...")
    backbone = read.get(subject.backbone or "")
    if backbone is not None:
        yield from (_fit(read[name], backbone) for name in subject.loads if name in read)


def _whole(files: ModelFiles) -> Finding:
    """Whether the files of one model belong together."""
    compared, differing = _compare_shapes(files, ModelFiles(fields=files.fields))
    complaints = [*files.complaints, *(f"by config.json, {each}" for each in differing)]
    beyond = _layers_beyond(files, files)
    if beyond and compared:
        complaints.append(f"the weights have {several(beyond, 'layer')} more than config.json says")
    if complaints:
        sentence = f"{files.name}: {_some(complaints)}"
        return failed(sentence, advice=f"save or fetch it once more: {files.name}")
    if tokens := _too_many_tokens(files, files):
        sentence = f"{files.name}: {tokens}: such a token ends a run on a GPU without a clear word"
        again = "or fetch the tokenizer once more; in the script:"
        return warning(sentence, "model.resize_token_embeddings(len(tokenizer))", advice=again)
    if not files.shapes and files.fields is None:
        sentence = f"{files.name}: neither weights nor config.json of a known format"
        return warning(sentence, f"ls -l {files.name}")
    told = [
        f"{several(len(files.shapes), 'tensor')} in {several(files.files, 'file')}"
        if files.shapes
        else "config.json alone",
        f"{files.tokens} tokens" if files.tokens else "",
        f"trained on {files.base}" if files.base else "",
    ]
    return ok(f"{files.name}: {', '.join(filter(None, told))}")


def _fit(files: ModelFiles, model: ModelFiles) -> Finding:
    """Whether a checkpoint belongs to the backbone that will load it."""
    compared, differing = _compare_shapes(files, model)
    problems = []
    if files.fields is not None and model.fields is not None:
        pairs = ((w, getattr(files.fields, f), getattr(model.fields, f)) for f, w in SIZES.items())
        problems += [
            f"{words} {there}, not {here}" for words, there, here in pairs if there != here
        ]
    beyond = _layers_beyond(files, model)
    if beyond and compared and not problems:
        problems.append(f"{several(beyond, 'layer')} more than it has")
    if differing:
        problems.append(f"{len(differing)} of {compared} tensors differ: {_some(differing)}")
    if files.fields is None and (tokens := _too_many_tokens(files, model)):
        problems.append(tokens)
    since = f" (trained on {files.base})" if files.base else ""
    doubt = "" if problems else _doubt(files, model, compared)
    if problems or doubt:
        found = f"{files.name}{since} does not belong to {model.name}: {_some(problems)}"
        advice = (
            "load it into the model it was trained on: "
            f"--backbone {files.base or 'MODEL-IT-WAS-TRAINED-ON'},\nor load what was trained on "
            f"this one: --loads CHECKPOINT-OF-{Path(model.name).name}"
        )
        told = failed if problems else warning
        return told(doubt or found, advice=advice, check=FIT)
    said = [
        "the same sizes" if files.fields and model.fields else "",
        f"{compared} of {several(len(files.shapes), 'tensor')} compared" if compared else "",
        "the same tokens" if files.tokens and model.tokens else "",
    ]
    nothing = "nothing contradicts it, but no tensor could be compared"
    agrees = ", ".join(filter(None, said)) or nothing
    return ok(f"{files.name}{since} fits {model.name}: {agrees}", FIT)


def _doubt(files: ModelFiles, model: ModelFiles, compared: int) -> str:
    """Say what contradicts the two without a tensor that proves it."""
    names = (name.rpartition("/")[2] for name in (files.base, model.name))
    sizes = [{float(one) for one in BILLIONS.findall(name)} for name in names]
    if all(sizes) and sizes[0].isdisjoint(sizes[1]):
        return f"{files.name} was trained on {files.base}, and {model.name} would load it"
    if files.tokens and model.tokens and files.digest != model.digest:
        tokens = f"{files.tokens} and {model.tokens} tokens"
        return f"{files.name} and {model.name} have different tokenizers ({tokens})"
    if compared or not files.shapes or model.fields is None:
        return ""
    if any(model.fields.hidden in shape for shape in files.shapes.values()):
        return ""
    number = several(len(files.shapes), "tensor")
    side = f"a side of {model.fields.hidden}, the hidden size of {model.name}"
    return f"none of the {number} of {files.name} has {side}"


def _too_many_tokens(checkpoint: ModelFiles, backbone: ModelFiles) -> str:
    fields = backbone.fields
    if fields is None or checkpoint.rows <= fields.vocabulary:
        return ""
    return f"tokens go up to {checkpoint.rows - 1}, the embedding has {fields.vocabulary} rows"


def _some(sentences: list[str]) -> str:
    more = len(sentences) - MOST_SHOWN
    shown = "; ".join(sentences[:MOST_SHOWN])
    return f"{shown}; and {more} more" if more > 0 else shown


def _compare_shapes(checkpoint: ModelFiles, backbone: ModelFiles) -> tuple[int, list[str]]:
    """Compare every tensor that both know: how many those are, and in words each that differs."""
    asked = dict(_by_config(backbone.fields)) if backbone.fields is not None else {}
    asked |= {WRAPPERS.sub("", name, count=1): one for name, one in backbone.shapes.items()}
    compared, differing = 0, []
    for name, shape in checkpoint.shapes.items():
        lora = LORA.search(name)
        wanted = asked.get(WRAPPERS.sub("", LORA.sub(".weight", name), count=1))
        packed = len(shape) == 2 and shape[1] == 1  # four-bit weights of bitsandbytes
        if wanted is None or packed or (lora and (len(shape) != 2 or len(wanted) != 2)):
            continue
        there, here = shape, wanted
        if lora:  # of a low-rank part the side that is the layer's
            at = 1 if lora[1] == "A" else 0
            # Conv1D of GPT-2 keeps inputs x outputs, nn.Linear outputs x inputs
            there = Shape((shape[at],))
            here = there if shape[at] in wanted else Shape((wanted[at],))
        compared += 1
        if there != here:
            differing.append(f"{name} is {there}, not {here}")
    return compared, differing


def _layers_beyond(checkpoint: ModelFiles, backbone: ModelFiles) -> int:
    """Return how many layers the checkpoint has that the backbone does not have."""
    if backbone.fields is None or backbone.fields.two_stacks:
        return 0
    numbers = (LAYER.match(WRAPPERS.sub("", name, count=1)) for name in checkpoint.shapes)
    most = max((int(number[1]) + 1 for number in numbers if number), default=0)
    return max(0, most - backbone.fields.layers)


def _by_config(fields: Fields) -> Iterator[tuple[str, Shape]]:
    """Shapes that follow from sizes, for families whose layers are built as these names say."""
    if fields.model_type not in FAMILIES or fields.latent or fields.two_stacks:
        return
    hidden, wide = fields.hidden, fields.intermediate
    for name in ("embed_tokens", "wte", "lm_head"):
        yield f"{name}.weight", Shape((fields.vocabulary, hidden))
    queries, keys = fields.heads * fields.head_dim, fields.kv_heads * fields.head_dim
    parts = {
        "self_attn.q": (queries, hidden),
        "self_attn.k": (keys, hidden),
        "self_attn.v": (keys, hidden),
        "self_attn.o": (hidden, queries),
    }
    if not fields.experts:
        parts |= {"mlp.gate": (wide, hidden), "mlp.up": (wide, hidden), "mlp.down": (hidden, wide)}
    for layer in range(fields.layers):
        for part, shape in parts.items():
            yield f"layers.{layer}.{part}_proj.weight", Shape(shape)
