"""Checks the files that the run reads: present, complete, consistent and recent.

A run "trained on Qwen2.5-1.5B, evaluated on 0.5B" fails late, or continues with weights that were
never trained. Each tensor is compared with the backbone's tensor of that name, else with the shape
that the backbone's config.json implies.

No weights are loaded and no foreign code is run. safetensors reads only file headers. A torch file
is a zip archive whose index is a pickle. Every class and function that the pickle names is replaced
by an inert one, so that nothing a stranger put there is imported or called.
"""

from __future__ import annotations

import json
import pickle
import re
import time
import zipfile
from contextlib import suppress
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from lightning_hangcheck.doctor.check import Finding, check, failed, ok, warning
from lightning_hangcheck.doctor.environment_checks import cache_folder
from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.files import NoAnswerFromStorage, apart
from lightning_hangcheck.ledger.ledger_file import difference, fingerprint
from lightning_hangcheck.planning.config import (
    CONFIG_NAME,
    NAMES,
    Fields,
    read_config,
    read_fields,
)
from lightning_hangcheck.text.shown import bytes_in_words, several

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lightning_hangcheck.doctor.check import Subject
    from lightning_hangcheck.ledger.ledger_file import PastPhase

FINGERPRINTS_LIMIT_S = 20.0  # For fingerprints of all files; at most 64 MiB of each are read.
MODEL_LIMIT_S = 20.0
"""For one model: headers of 100 files on a slow network disk, and a tokenizer of 33 MB (1 s)."""
FIT = "checkpoint's backbone"
NAMED_SO = ("gpt2", "llama", "mistral", "mixtral", "qwen2")
"""Families whose tensors have the names below."""
MOST_SHOWN = 3
STEP = re.compile(r"(?:step|checkpoint)[_=-]?(\d+|final)", re.IGNORECASE)
"""Folder names of Lightning (step=500), transformers (checkpoint-500) and most scripts."""
SIZES = (
    *("model_type", "hidden", "layers", "heads", "kv_heads", "head_dim"),
    *("intermediate", "vocabulary"),
)
LORA = re.compile(r"\.lora_([AB])(?:\.\w+)?\.weight$")
"""peft's names: A has the layer's input side, B its output side."""
LAYER = re.compile(r"(?:layers|h)\.(\d+)\.")
WRAPPERS = re.compile(
    r"^(?:(?:state_dict|model_state_dict|model|module|base_model|backbone|llm|language_model"
    r"|transformer|net|_orig_mod|_forward_module|_fsdp_wrapped_module)\.)*"
)
"""Prefixes that trainers, compilers and scripts add to tensor names. A module of another name may
hold layers of its own, so its tensors do not count as the backbone's."""
SAFE = ".safetensors"
OF_TORCH = (".bin", ".pt", ".pth", ".ckpt")
POINTER = b"version https://git-lfs"
DEEPEST = 6  # Nested folders of a checkpoint: Lightning's optimizer states are four deep.


@check(
    "data",
    "a rank that finds nothing, or yesterday's file, fails or waits while the others go on",
    limit_s=30.0,
)
def needed_files(subject: Subject, now: float | None = None) -> Iterator[Finding]:
    """Each file or folder named by --needs, and its age where --fresh is given."""
    clock = time.time() if now is None else now

    def size_and_time(path: Path) -> tuple[int, float]:
        """Return size in bytes and modification time; of a folder, the newest of its entries."""
        if path.is_dir():
            inside = [file.stat() for file in path.iterdir()]
            newest = max((status.st_mtime for status in inside), default=path.stat().st_mtime)
            return sum(status.st_size for status in inside), newest
        with path.open("rb") as file:
            file.read(4096)
        state = path.stat()
        return state.st_size, state.st_mtime

    for path in map(Path, subject.needs):
        try:
            size, changed_at = apart(3.0, lambda path=path: size_and_time(path))  # type: ignore[misc]
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
    phases = [phase for phase in subject.ledger().phases if phase.counts] if subject.needs else []
    made: dict[str, PastPhase] = {}
    for path in subject.needs:
        whole = str(Path(path).absolute())
        for phase in phases:  # the newest phase that made the file counts
            if any(output.path == whole for output in phase.outputs):
                made[path] = phase
    if not made:
        return ()
    try:
        found = apart(FINGERPRINTS_LIMIT_S, lambda: list(_of_other_versions(made)))
    except (OSError, NoAnswerFromStorage) as error:
        return (warning(f"they cannot be compared: {error}", "ls -l"),)
    shown = ", ".join(f"{path} by phase {phase.name}" for path, phase in made.items())
    return tuple(
        warning(problem, f"hangcheck ledger check {quote(phase)}") for problem, phase in found
    ) or (ok(f"as they were made: {shown}"),)


def _of_other_versions(made: Mapping[str, PastPhase]) -> Iterator[tuple[str, str]]:
    """Yield each problem in one sentence, with the phase to look at."""
    first: dict[str, tuple[str, str]] = {}
    older = []
    for path, phase in made.items():
        whole = str(Path(path).absolute())
        left = next(output for output in phase.outputs if output.path == whole)
        if changed := difference(left, fingerprint(whole)):
            yield f"{changed}, since phase {phase.name} made it", phase.name
        for used in phase.inputs:
            other, digest = first.setdefault(used.path, (path, used.digest))
            if digest != used.digest:
                yield f"{other} and {path} were made from two versions of {used.path}", phase.name
            if changed := difference(used, fingerprint(used.path)):
                older.append((f"{path} was made from another version: {changed}", phase.name))
    yield from older


class Shape(tuple[int, ...]):
    """Sides of a tensor; its own type, to distinguish it from other tuples of an index."""

    __slots__ = ()

    def __str__(self) -> str:
        return " x ".join(map(str, self)) or "a single number"


class ModelFiles(Struct, frozen=True, kw_only=True):
    """Contents of the files of a model or checkpoint.

    Attributes:
        fields: From config.json; None without one, or if it describes no text model.
        shapes: Shape of each tensor by name; names in nested dictionaries are joined by dots.
        tokens: Id of each token in tokenizer.json; empty without that file.
        complaints: Problems of the files: a part is missing, cut off, or from another save.
    """

    name: str
    fields: Fields | None = None
    shapes: dict[str, Shape] = {}
    tokens: dict[str, int] = {}
    files: int = 0
    complaints: tuple[str, ...] = ()

    def compared_with(
        self, known: Mapping[str, Shape], fields: Fields | None
    ) -> tuple[int, list[str], int]:
        """Compare the tensors with those of a model, else with what its config.json implies.

        Returns:
            Number of tensors found in both, a sentence for each that differs, and number of extra
            layers.
        """
        asked = {
            **_by_config(fields),
            **{WRAPPERS.sub("", name): shape for name, shape in known.items()},
        }
        compared, differing, layers = 0, [], 0
        for name, shape in self.shapes.items():
            own_name, lora = WRAPPERS.sub("", name), LORA.search(name)
            if layer := LAYER.match(own_name):
                layers = max(layers, int(layer[1]) + 1)
            wanted = asked.get(LORA.sub(".weight", own_name))
            packed = len(shape) == 2 and shape[1] == 1  # four-bit weights of bitsandbytes
            if wanted is None or packed or (lora and (len(shape) != 2 or len(wanted) != 2)):
                continue
            compared += 1
            if lora:  # of a low-rank part, compare the layer's side: A has its input, B its output
                at = 1 if lora[1] == "A" else 0
                # GPT-2's Conv1D stores inputs x outputs, nn.Linear outputs x inputs
                there = Shape((shape[at],))
                shape, wanted = there, there if shape[at] in wanted else Shape((wanted[at],))
            if shape != wanted:
                differing.append(f"{name} is {shape}, not {wanted}")
        countable = compared and fields is not None and not fields.two_stacks
        return compared, differing, max(0, layers - fields.layers) if countable and fields else 0


@check(
    "data",
    "a checkpoint of another backbone fails late, or leaves weights as they were at random",
    name="model's files",
    limit_s=2 * MODEL_LIMIT_S,
)
def model_fits(subject: Subject) -> Iterator[Finding]:
    """Config.json, headers of the weights and tokenizer.json of --loads and of --backbone."""
    read: dict[str, ModelFiles] = {}
    with suppress(ImportError):  # import before the fork that reads, where an import could deadlock
        import safetensors.numpy  # noqa: F401 - as said
    for name in dict.fromkeys(filter(None, (*subject.loads, subject.backbone))):
        try:
            path = find_model(name, subject.environment)
            read[name] = apart(MODEL_LIMIT_S, partial(_read_model, name, path))
            yield _whole(read[name])
        except FileNotFoundError:
            correct = "correct its name, or fetch it:"
            yield failed(f"{name} is not here", f"hf download {name}", advice=correct)
        except (OSError, NoAnswerFromStorage) as error:
            yield failed(f"{name} cannot be read: {error}", f"ls -l {name}")
    # checkpoints that are loaded together but named after different steps
    steps = {name: found[-1] for name in subject.loads if (found := STEP.findall(name))}
    if len(set(steps.values())) > 1:
        shown = ", ".join(f"{name} (step {step})" for name, step in steps.items())
        sentence = f"checkpoints of several steps are loaded together: {shown}"
        yield warning(sentence, advice="name those of one step: --loads step_N/...")
    backbone = read.get(subject.backbone or "")
    if backbone is not None:
        yield from (_fit(read[name], backbone) for name in subject.loads if name in read)


def _whole(files: ModelFiles) -> Finding:
    name, tensors = files.name, several(len(files.shapes), "tensor")
    _, differing, layers = files.compared_with({}, files.fields)
    complaints = [*files.complaints, *(f"by config.json, {each}" for each in differing)]
    if layers:
        complaints.append(f"the weights have {several(layers, 'layer')} more than config.json says")
    if complaints:
        sentence = f"{name}: {_some(complaints)}"
        return failed(sentence, advice=f"save or fetch it once more: {name}")
    rows = files.fields.vocabulary if files.fields else 0
    most = max(files.tokens.values(), default=-1)
    if 0 < rows <= most:
        sentence = (
            f"{name}: tokens go up to {most}, the embedding has {rows} rows: such a token ends a "
            "run on a GPU without a clear word"
        )
        again = "or fetch the tokenizer once more; in the script:"
        return warning(sentence, "model.resize_token_embeddings(len(tokenizer))", advice=again)
    if not files.shapes and files.fields is None:
        neither = f"{name}: neither weights nor config.json of a known format"
        return warning(neither, f"ls -l {name}")
    parts = f"{tensors} in {several(files.files, 'file')}" if files.shapes else "config.json alone"
    return ok(f"{name}: {parts}{f', {len(files.tokens)} tokens' if files.tokens else ''}")


def _fit(files: ModelFiles, model: ModelFiles) -> Finding:
    """Whether a checkpoint fits the backbone that will load it."""
    compared, differing, layers = files.compared_with(model.shapes, model.fields)
    number, problems, doubt = several(len(files.shapes), "tensor"), [], ""
    if files.fields is not None and model.fields is not None:
        problems = [
            f"{NAMES.get(field, (field,))[0]} {there}, not {here}"
            for field in SIZES
            if (there := getattr(files.fields, field)) != (here := getattr(model.fields, field))
        ]
    if layers and not problems:
        problems.append(f"{several(layers, 'layer')} more than it has")
    if differing:
        problems.append(f"{len(differing)} of {compared} tensors differ: {_some(differing)}")
    if files.tokens and model.tokens and files.tokens != model.tokens:
        tokens = f"{len(files.tokens)} and {len(model.tokens)} tokens"
        doubt = f"{files.name} and {model.name} have different tokenizers ({tokens})"
    advice = (
        "load it into the model it was trained on: --backbone MODEL-IT-WAS-TRAINED-ON,\n"
        f"or load what was trained on this one: --loads CHECKPOINT-OF-{Path(model.name).name}"
    )
    if problems:
        found = f"{files.name} does not belong to {model.name}: {_some(problems)}"
        return failed(found, advice=advice, check=FIT)
    if doubt:
        return warning(doubt, advice=advice, check=FIT)
    said = [
        "the same sizes" if files.fields and model.fields else "",
        f"{compared} of {number} compared" if compared else "",
        "the same tokens" if files.tokens and model.tokens else "",
    ]
    nothing = "nothing contradicts it, but no tensor could be compared"
    agrees = ", ".join(filter(None, said)) or nothing
    return ok(f"{files.name} fits {model.name}: {agrees}", FIT)


def _some(sentences: list[str]) -> str:
    more = len(sentences) - MOST_SHOWN
    shown = "; ".join(sentences[:MOST_SHOWN])
    return f"{shown}; and {more} more" if more > 0 else shown


def _by_config(fields: Fields | None) -> dict[str, Shape]:
    """Derive shapes from sizes, for families whose layers have these names."""
    if fields is None or fields.model_type not in NAMED_SO or fields.latent:
        return {}
    hidden, wide = fields.hidden, fields.intermediate
    queries, keys = fields.heads * fields.head_dim, fields.kv_heads * fields.head_dim
    tables = ("embed_tokens", "wte", "lm_head")
    shapes = {f"{name}.weight": Shape((fields.vocabulary, hidden)) for name in tables}
    parts = {"self_attn.q": (queries, hidden), "self_attn.k": (keys, hidden)}
    parts |= {"self_attn.v": (keys, hidden), "self_attn.o": (hidden, queries)}
    if not fields.experts:
        parts |= {"mlp.gate": (wide, hidden), "mlp.up": (wide, hidden), "mlp.down": (hidden, wide)}
    for layer in range(fields.layers):
        shapes |= {f"layers.{layer}.{part}_proj.weight": Shape(of) for part, of in parts.items()}
    return shapes


def find_model(name: str, environment: Mapping[str, str]) -> Path:
    """Return a file or folder, else the newest snapshot of that name in the hub's cache."""
    path = Path(name).expanduser()
    if path.exists() or name.startswith(("/", ".", "~")):
        return path
    kept = cache_folder(environment) / f"models--{name.replace('/', '--')}" / "snapshots"
    return max(kept.glob("*"), key=lambda folder: folder.stat().st_mtime, default=path)


def _read_model(name: str, path: Path) -> ModelFiles:
    """Read a model's folder, a weights file, or a config.json; raises OSError as `open` does."""
    index: dict[str, str] = {}
    config, files, safe = path / CONFIG_NAME, [path], []
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in (SAFE, *OF_TORCH))
        # like from_pretrained: safetensors if present
        safe = [file for file in files if file.suffix == SAFE]
        files = safe or files
        for file in path.glob(f"*{SAFE}.index.json" if safe else "*.index.json"):
            index |= _object(_json(file).get("weight_map"))
    elif path.suffix == ".json":
        config, files = path, []
    path.stat()
    shapes: dict[str, Shape] = {}
    parts = sorted({part for part in index.values() if not (path / part).exists()})
    complaints = [f"{part} is missing, which an index names" for part in parts]
    for file in files:
        try:
            shapes |= read_weight_file(file)
        except CannotBeRead as error:
            complaints.append(f"{file.name}: {error}")
    # the contents of torch files before 1.6 are unknown
    missing = [tensor for tensor in index if safe and tensor not in shapes]
    if missing and not complaints:
        which = f"{len(missing)} tensors, {missing[0]} for one"
        complaints = [f"an index names {which}, that no file here holds"]
    # the vocabulary and the added tokens, as the tokenizers library stores them
    tokenizer = _json(path / "tokenizer.json")
    vocabulary = _object(tokenizer.get("model")).get("vocab")
    if isinstance(vocabulary, list):
        vocabulary = {pair[0]: number for number, pair in enumerate(vocabulary)}
    tokens = {str(token): int(number) for token, number in _object(vocabulary).items()}
    tokens |= {
        str(token["content"]): int(token["id"]) for token in tokenizer.get("added_tokens") or ()
    }
    fields = None
    with suppress(BadUsage):  # not a text model, which is no error
        fields = read_fields(read_config(config)) if config.exists() else None
    return ModelFiles(
        name=name,
        fields=fields,
        shapes=shapes,
        tokens=tokens,
        files=len(files),
        complaints=tuple(complaints),
    )


def _json(file: Path) -> dict[str, Any]:
    """Empty if the file is missing, too large or no JSON object."""
    with suppress(FileNotFoundError, NotADirectoryError, ValueError):
        if file.stat().st_size <= 200_000_000:  # the largest known tokenizer.json has 33 million
            return _object(json.loads(file.read_bytes()))
    return {}


def _object(content: Any) -> dict[str, Any]:  # noqa: ANN401 - a file may contain anything
    return content if isinstance(content, dict) else {}


class CannotBeRead(Exception):
    """A weights file is damaged, or cannot be read here; the message says how."""


def read_weight_file(path: Path) -> dict[str, Shape]:
    """Read the tensor shapes in a weights file; an unknown format yields none.

    Raises:
        CannotBeRead: The file is empty, cut off or damaged, or its reader is not installed.
    """
    with path.open("rb") as opened:
        beginning = opened.read(len(POINTER))
    if not beginning:
        raise CannotBeRead("it is empty")
    if beginning == POINTER:
        raise CannotBeRead("it is a pointer of git-lfs to the real file: git lfs pull")
    if path.suffix == SAFE:
        try:
            from safetensors import SafetensorError, safe_open
        except ImportError as error:
            raise CannotBeRead("it cannot be read here: pip install safetensors numpy") from error
        try:
            with safe_open(path, framework="numpy") as tensors:
                names = tensors.keys()
                return {name: Shape(tensors.get_slice(name).get_shape()) for name in names}
        except SafetensorError as error:
            said = f"it is cut off, damaged, or no safetensors file ({error})"
            raise CannotBeRead(said) from error
    if not beginning.startswith(b"PK\x03\x04"):  # torch before 1.6 and others write bare pickles
        return {}
    try:
        with zipfile.ZipFile(path) as archive:
            found = [info for info in archive.infolist() if info.filename.endswith("data.pkl")]
            if found and found[0].file_size <= 100_000_000:
                with archive.open(found[0]) as file:
                    return dict(_tensors(_Inert(file).load(), (), set()))
    except zipfile.BadZipFile as error:
        raise CannotBeRead("it is cut off: the end of the archive is missing") from error
    except Exception as error:  # a foreign pickle may raise anything
        raise CannotBeRead(f"its index cannot be read ({type(error).__name__})") from error
    raise CannotBeRead("it is an archive without an index of torch")


class _Nothing(dict[Any, Any]):
    """Replaces whatever an index names: accepts any arguments, state and items, does nothing."""

    def __init__(self, *_: object, **__: object) -> None:
        super().__init__()

    def __call__(self, *_: object, **__: object) -> _Nothing:
        return self

    __setstate__ = append = extend = lambda self, _: None
    __hash__ = object.__hash__  # type: ignore[assignment] # may be used as a key


class _Inert(pickle.Unpickler):
    """Unpickles with `_Nothing` for every class and function, except those that give shapes."""

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401 - any class may be meant
        return _KNOWN.get((module, name), _Nothing)

    def persistent_load(self, _: object) -> object:
        return None


_KNOWN: dict[tuple[str, str], Any] = {
    **dict.fromkeys(
        [("torch._utils", f"_rebuild_tensor{version}") for version in ("", "_v2", "_v3")],
        lambda _storage, _offset, size, *_: Shape(size),
    ),
    ("torch._utils", "_rebuild_meta_tensor_no_storage"): lambda _dtype, size, *_: Shape(size),
    ("torch._utils", "_rebuild_parameter"): lambda data, *_: data,
    ("torch._utils", "_rebuild_parameter_with_state"): lambda data, *_: data,
    ("torch", "Size"): tuple,
}
"""Our replacements for the functions by which torch rebuilds tensors (torch/_utils.py)."""


def _tensors(
    content: object, within: tuple[str, ...], seen: set[int]
) -> Iterator[tuple[str, Shape]]:
    """Walk through dictionaries and lists, each once, however often it is referenced."""
    if isinstance(content, Shape):
        yield ".".join(within), content
    elif isinstance(content, dict | list) and id(content) not in seen and len(within) < DEEPEST:
        seen.add(id(content))
        for name, item in content.items() if isinstance(content, dict) else enumerate(content):
            yield from _tensors(item, (*within, str(name)), seen)
