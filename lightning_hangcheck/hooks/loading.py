"""`load_pretrained`: from_pretrained with progress, and a look at what it loaded.

Before a load it reports the source, the expected time, and known traps in the arguments. During the
load each weight is a sign of life and each weight file a line. Loads of a watched script are
reported the same way, without time estimate and test generation.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.hooks import models
from lightning_hangcheck.hooks.generating import token_beat
from lightning_hangcheck.hooks.zero_code.start import passed
from lightning_hangcheck.hooks.zero_code.wrapping import Call, in_section, inside, wrap
from lightning_hangcheck.recorder.announcer import attempt
from lightning_hangcheck.recorder.lifecycle import Recorder, Section, current
from lightning_hangcheck.text.shown import bytes_in_words, several
from lightning_hangcheck.time_limit import NoAnswer, within

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from types import ModuleType

    from lightning_hangcheck.hooks.models import Model

LOOK_LIMIT = 2.0  # seconds that looking at the files may take before the load begins
SAMPLES = 4
SAMPLE_SIZE = 1 << 20  # bytes: large enough to hide the cost of opening the file; read in 10 ms
SMALLEST_MODEL = 64 << 20  # bytes; smaller models load too fast to be worth an estimate
TRIAL_TOKENS = 4
MARKS = ("config.json", "tokenizer_config.json")  # one is cached if any part of a model is
WITHOUT_WEIGHTS = ("Tokenizer", "Processor", "Config", "FeatureExtractor")
GENERATING = ("LM", "Generation", "generation")  # in the class names of models that generate
SPREADING = ("auto", "balanced", "balanced_low_0", "sequential")
_following = threading.local()  # attribute load: the load running in this thread


def load_pretrained(
    name_or_path: str | os.PathLike[str],
    kind: type | str = "AutoModelForCausalLM",
    *,
    test_generation: bool = True,
    **named: object,
) -> Any:  # noqa: ANN401 - a model, a tokenizer, or a model and a report
    """Call ``kind.from_pretrained``, and report what it will do, its progress and its result.

    A missing pad token is set from the end-of-sequence token, also with ``HANGCHECK_DISABLE=1``. A
    failure of our own is reported once and changes nothing.

    Args:
        name_or_path: A folder, or a hub name.
        kind: A class with ``from_pretrained``, or the name of such a class in transformers.
        test_generation: Generate four tokens, if the model can generate.
        **named: Arguments of ``from_pretrained``.

    Raises:
        BadUsage: There is no such kind.
        Exception: Whatever ``from_pretrained`` raises, unchanged.
    """
    import transformers

    loader: Any = getattr(transformers, kind, None) if isinstance(kind, str) else kind
    if not hasattr(loader, "from_pretrained"):
        raise BadUsage(
            f"kind={kind!r} has no from_pretrained",
            "write the name of a class of transformers, as 'AutoModelForCausalLM' or "
            "'AutoTokenizer', or give the class itself",
        )
    recorder, title = current(), loader.__name__
    without = any(word in title for word in WITHOUT_WEIGHTS)
    with watched_load(name_or_path, title, "tokenizer" if without else "model", named):
        result = loader.from_pretrained(name_or_path, **named)
    loaded = result[0] if isinstance(result, tuple) else result
    if not hasattr(loaded, "named_parameters"):
        attempt("a look at the tokenizer", models.give_pad_token, loaded, recorder)
        return result
    attempt("a look at the model", models.look_at_model, loaded, recorder)
    if not recorder.settings.disable:
        attempt("clearing the cache of the GPU", give_gpu_memory_back, recorder)
        if test_generation:
            attempt("the test generation", try_generation, loaded, recorder)
    return result


def give_gpu_memory_back(recorder: Recorder) -> None:
    """Empty torch's GPU memory cache, and say how much that frees."""
    from torch import cuda

    if cuda.is_initialized():
        gpus = range(cuda.device_count())
        before = sum(map(cuda.memory_reserved, gpus))
        cuda.empty_cache()
        kept = sum(map(cuda.memory_reserved, gpus))
        freed = f"{bytes_in_words(before - kept)} given back, {bytes_in_words(kept)} reserved still"
        recorder.say(f"after loading: cache of the GPU cleared: {freed}")


def try_generation(model: Model, recorder: Recorder) -> None:
    """Generate four tokens without sampling, the same number on every rank."""
    # Skipped for a sharded model: each of its steps waits for other ranks.
    import torch

    can_generate = getattr(model, "can_generate", None)
    if not (callable(can_generate) and can_generate()):
        return
    shared = models.are_shared_out(model.parameters())
    if shared or models.without_data(model):
        why = "are shared out over the ranks" if shared else "have no data"
        recorder.say(f"test generation: left out, because its parameters {why}")
        return
    device = models.input_device(model)
    gpus = [device.index or 0] if device.type == "cuda" else []
    # transformers warns if the last token is padding
    token = 0 if getattr(model.config, "pad_token_id", None) == 1 else 1
    with (
        Section(recorder, f"test generation of {TRIAL_TOKENS} tokens on {device}"),
        inside("generate"),
        torch.no_grad(),
        torch.random.fork_rng(gpus),
    ):
        tokens = torch.full((1, TRIAL_TOKENS), token).to(device)
        model.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            min_new_tokens=TRIAL_TOKENS,
            max_new_tokens=TRIAL_TOKENS,
            stopping_criteria=[token_beat(partial(models.sign_of_life, recorder))],
            do_sample=False,
            num_beams=1,
            num_return_sequences=1,
        )


class Source(msgspec.Struct, frozen=True):
    """Where ``from_pretrained`` will read from."""

    kind: Literal["folder", "cache", "hub"] = "folder"
    offline: bool = True
    folder: Path | None = None
    weight_files: dict[Path, int] = {}  # bytes of each; 0 of a pipe
    file_of_weight: dict[str, str] = {}  # if there is an index
    has_generation_config: bool = False


def find_source(name: str, named: Mapping[str, Any]) -> Source:
    """Find where ``from_pretrained`` will read from, without network access."""
    from huggingface_hub import constants, try_to_load_from_cache

    offline = bool(named.get("local_files_only")) or bool(constants.HF_HUB_OFFLINE)
    root, cached = Path(name), None
    if not root.is_dir():
        place = {"cache_dir": named.get("cache_dir"), "revision": named.get("revision")}
        try:
            found = [try_to_load_from_cache(name, mark, **place) for mark in MARKS]
        except ValueError:  # no valid hub name, for example a path of three parts
            found = []
        cached = next((path for path in found if isinstance(path, str)), None)
        if cached is None:
            return Source("hub", offline)
        root = Path(cached).parent
    folder, variant = root / (named.get("subfolder") or ""), named.get("variant")
    middle = f".{variant}" if variant else ""
    files: list[Path] = []
    held: dict[str, str] = {}
    # in from_pretrained's order of preference
    for stem, ending in (("model", "safetensors"), ("pytorch_model", "bin")):
        single = folder / f"{stem}{middle}.{ending}"
        index = folder / f"{stem}.{ending}.index{middle}.json"
        if not files and single.exists():
            files = [single]
        elif not files and index.exists():
            held = msgspec.json.decode(index.read_bytes())["weight_map"]
            files = [folder / file for file in sorted({*held.values()})]
    sizes = {file: file.stat().st_size for file in files}
    configured = (folder / "generation_config.json").exists()
    return Source("cache" if cached else "folder", offline, folder, sizes, held, configured)


def traps(
    name: str, loader: str, named: Mapping[str, Any], source: Source, ranks: int
) -> Iterator[str]:
    """Name each trap in a load's arguments, and how to avoid it."""
    device_map = named.get("device_map")
    places = device_map.values() if isinstance(device_map, dict) else ()
    if named.get("offload_state_dict"):
        yield (
            "offload_state_dict=True (ignored from transformers 4.57 on) writes all weights to a "
            "temporary folder and reads them back at the end: on slow storage loading seems never "
            "to end, and parameters can stay on the meta device; leave it out, and limit memory "
            "with max_memory={0: '20GiB', 'cpu': '60GiB'}"
        )
    if device_map is not None and (named.get("offload_folder") is not None or "disk" in places):
        yield (
            "with a device map and offload_folder, what does not fit goes to disk: its parameters "
            "stay on the meta device, each forward pass reads them again, and DDP, FSDP or "
            "model.to() fail on them or never end; leave offload_folder out, and load in 8 bits, "
            "on more GPUs, or with a max_memory map that holds the whole model"
        )
    if ranks > 1 and str(device_map) in SPREADING:
        yield (
            f"device_map={device_map!r} in each of {ranks} ranks spreads every rank's model over "
            "all GPUs of its node; give each rank its own: "
            "device_map={'': int(os.environ['LOCAL_RANK'])}"
        )
    if source.kind == "cache" and not source.offline:
        yield (
            "all is in the cache, yet from_pretrained asks the hub about it, and so does "
            "GenerationConfig.from_pretrained: a hub that does not answer holds both up; pass "
            "local_files_only=True to both, or set HF_HUB_OFFLINE=1 before Python starts"
        )
    if source.kind == "hub" and (source.offline or name.startswith(("/", ".", "~"))):
        yield (
            f"there is no folder {name}, so it is taken for a hub's name; give the path of a "
            "folder that exists, or the full name of the hub (owner/model)"
        )
    needs_config = bool(source.weight_files) and any(word in loader for word in GENERATING)
    if loader == "GenerationConfig":  # what the cache lacks, the hub may have
        needs_config = source.kind == "folder" or (source.kind == "cache" and source.offline)
    if needs_config and not source.has_generation_config:
        yield (
            "it has no generation_config.json: GenerationConfig.from_pretrained fails for it, and "
            "asks the network first where the model is given by its hub name; use "
            "GenerationConfig.from_model_config(model.config)"
        )


def announced(
    name: object, loader: str, what: str, named: Mapping[str, Any], *, estimate: bool = False
) -> Source:
    """Report what will be loaded and its traps; a new object is made without a name."""
    if not isinstance(name, (str, os.PathLike)) or current().settings.disable:
        return Source()
    look = partial(look_ahead, str(name), loader, what, named, estimate=estimate)
    return attempt("looking at the files", look) or Source()


def look_ahead(
    name: str, loader: str, what: str, named: Mapping[str, Any], *, estimate: bool
) -> Source:
    """Report what will be loaded and which traps that meets, in about 2 seconds."""
    recorder = current()
    try:
        source = within(LOOK_LIMIT, partial(find_source, name, named))
    except NoAnswer:
        slow = f"the storage of {name} did not answer within {LOOK_LIMIT:g} s"
        recorder.say(f"WARNING: {slow}")
        return Source()
    where = {
        "folder": f"the local folder {name}",
        "cache": f"{name} from the cache of the hub ({source.folder})",
        "hub": f"{name} from the hub (no folder here has this name, and the cache has it not)",
    }
    parts = [f"{loader}.from_pretrained will read {where[source.kind]}"]
    files, size = source.weight_files, sum(source.weight_files.values())
    if what == "model":
        if files:
            parts.append(f"{several(len(files), 'weight file')}, {bytes_in_words(size)}")
        dtype = named.get("dtype", named.get("torch_dtype"))
        parts.append(f"device_map={named.get('device_map')!r}")
        parts.append("dtype=transformers' default" if dtype is None else f"dtype={dtype}")
    parts.append("offline: the hub is not asked" if source.offline else "online")
    recorder.say("; ".join(parts))
    ranks = recorder.identity.world_size or 1
    for trap in traps(name, loader, named, source, ranks) if what != "tokenizer" else ():
        recorder.say(f"WARNING: {trap}")
    if estimate and what == "model" and size >= SMALLEST_MODEL:
        attempt("an estimate of the time", _estimate, source, size)
    return source


def _estimate(source: Source, size: int) -> None:
    """Say how long reading may take, by sampling the storage's speed."""
    readable = [file for file in source.weight_files.items() if file[1] >= SAMPLE_SIZE]

    def bytes_a_second() -> float:
        started, read = time.perf_counter(), 0
        for number in range(SAMPLES):
            file, whole = readable[number * len(readable) // SAMPLES]
            with file.open("rb", buffering=0) as opened:
                opened.seek(int((whole - SAMPLE_SIZE) * (number + 0.5) / SAMPLES))
                read += len(opened.read(SAMPLE_SIZE))
        return read / (time.perf_counter() - started)

    try:
        rate = within(LOOK_LIMIT, bytes_a_second)
    except NoAnswer:
        slow = f"a sample of the weight files was not read within {LOOK_LIMIT:g} s"
        current().say(f"WARNING: {source.folder} is slow: {slow}")
        return
    current().say(
        f"reading may take about {size / rate:.0f} s (an estimate: {bytes_in_words(size)} "
        f"at {bytes_in_words(rate)}/s, measured just now on a sample of the files)"
    )


@contextmanager
def watched_load(
    name: str | os.PathLike[str], loader: str, what: str, named: Mapping[str, Any]
) -> Iterator[None]:
    """Announce a load of ours, make it a section, and report its progress."""
    source = announced(name, loader, what, named, estimate=True)
    with Section(current(), f"{what} from_pretrained ({loader})"), followed(source):
        yield


@contextmanager
def followed(source: Source) -> Iterator[None]:
    """Report what transformers loads in this thread; a nested load belongs to the outer one."""
    # transformers 4.48 to 5.23 use ``transformers.utils.logging.tqdm`` for each file (4.x) or
    # weight (5.x). A version that does not still loads, without progress.
    if getattr(_following, "load", None) is not None or current().settings.disable:
        yield
        return
    attempt("the progress of loading", _watch_bars)
    _following.load = Progress(source)
    try:
        yield
    finally:
        _following.load = None


class Progress:
    """Progress of a load: each weight is a sign of life, each weight file a line."""

    def __init__(self, source: Source) -> None:
        self._sizes = {file.name: size for file, size in source.weight_files.items()}
        self._file_of_weight = source.file_of_weight
        self._weights_left = Counter(source.file_of_weight.values())
        self._unsaid, self._since = {*self._sizes}, time.monotonic()

    def each(self, items: Iterable[object]) -> Iterator[object]:
        """Yield a bar's items, and report each once the next is asked for."""
        for item in items:
            yield item
            attempt("telling of a weight", self._tell, item)
        for file in self._sizes:  # files with weights that the model does not have
            attempt("telling of a weight", self._tell_file, file)

    def _tell(self, item: object) -> None:
        """Report a finished bar item: a weight in transformers 5 (name, mapping), else a file."""
        models.sign_of_life(current())
        match item:
            case (str() as name, mapping) if not isinstance(mapping, str):
                targets = getattr(mapping, "layer_targets", None) or {"": [name]}
                for weight in {key for keys in targets.values() for key in keys}:
                    file = self._file_of_weight.get(weight, "")
                    self._weights_left[file] -= 1
                    if not self._weights_left[file]:
                        self._tell_file(file)
            case (str() as path) | (str() as path, *_):  # or the arguments of its load (4.5x)
                self._tell_file(Path(path).name)

    def _tell_file(self, name: str) -> None:
        if name in self._unsaid:
            self._unsaid.discard(name)
            number, before = [*self._sizes].index(name) + 1, self._since
            self._since = time.monotonic()
            size, took = bytes_in_words(self._sizes[name]), self._since - before
            of = f"{number}/{len(self._sizes)}"
            current().say(f"loaded weight file {of} {name} ({size}, {took:.3f}s)")


@cache
def _watch_bars() -> None:
    from transformers.utils import logging

    @contextmanager
    def progress_bar(call: Call) -> Iterator[None]:
        """Follow a bar's items, or its updates if it is moved by hand (loads in threads)."""
        load: Progress | None = getattr(_following, "load", None)
        followed = load is not None and str(call.named.get("desc")).startswith("Loading")
        if followed and call.arguments:
            items, *rest = call.arguments
            total = len(items) if hasattr(items, "__len__") else None
            call.named = {"total": total, **call.named}
            call.arguments = (load.each(items), *rest)  # type: ignore[union-attr] # followed says so
        yield
        if followed and not call.arguments:
            wrap(call.result, "update", after=lambda _: models.sign_of_life(current()))

    wrap(type(logging.tqdm), "__call__", progress_bar)


def instrument_loading(module: ModuleType) -> None:
    """Watch what the classes of this module of transformers load."""
    # Each AutoModel has copies of these methods (auto_factory.py, copy_func), so each is wrapped.

    @contextmanager
    def loading(call: Call) -> Iterator[None]:
        with followed(announced(_name(call), call.instance.__name__, "model", call.named)):
            yield
        # a model, or a tuple with loading info (output_loading_info=True)
        model = call.result[0] if isinstance(call.result, tuple) else call.result
        attempt("a look at the model", models.show_class_and_device, model, current())

    for owner in [var for var in vars(module).values() if isinstance(var, type)]:
        if owner.__module__ != module.__name__ or "from_pretrained" not in vars(owner):
            continue
        if "Tokenizer" in owner.__name__ or "Processor" in owner.__name__:
            section = in_section("tokenizer", _titled("tokenizer"), then=lambda _: passed(4))
            wrap(owner, "from_pretrained", section)
        elif "Model" in owner.__name__:
            loaded = in_section("model", _titled("model"), lambda _: passed(5), around=loading)
            wrap(owner, "from_pretrained", loaded)
            configured = in_section("model", _titled("model", "config"), lambda _: passed(5))
            wrap(owner, "from_config", configured)


def instrument_config(module: ModuleType) -> None:
    """Watch how a generation config is read, except the one that comes with a model."""

    @contextmanager
    def reading(call: Call) -> Iterator[None]:
        announced(_name(call), call.instance.__name__, "model config", call.named)
        yield

    section = in_section("model", _titled("model config"), around=reading)
    wrap(module.GenerationConfig, "from_pretrained", section)


def _titled(what: str, source: str = "pretrained") -> Callable[[Call], str]:
    return lambda call: f"{what} from_{source} ({call.instance.__name__})"


def _name(call: Call) -> object:
    name = next(iter(call.arguments), call.named.get("pretrained_model_name_or_path"))
    return call.named.get("pretrained_model_name") if name is None else name
