"""`load_pretrained`: from_pretrained with progress, and a look at what it loaded.

Before a load it reports the source, the expected time, and known traps in the arguments. During the
load each weight is a sign of life and each weight file a line. Loads of a watched script are
reported the same way, without time estimate, pad token and test generation.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from contextlib import contextmanager, nullcontext, suppress
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.hooks import models
from lightning_hangcheck.hooks.being_watched import passing
from lightning_hangcheck.hooks.generating import token_beat
from lightning_hangcheck.hooks.zero_code.wrapping import Call, in_section, inside, wrap
from lightning_hangcheck.recorder.announcer import attempt
from lightning_hangcheck.recorder.lifecycle import Recorder, Section, current
from lightning_hangcheck.text.shown import bytes_in_words, several
from lightning_hangcheck.time_limit import NoAnswer, within

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from types import ModuleType

    from lightning_hangcheck.hooks.being_watched import Number
    from lightning_hangcheck.hooks.models import Model

LOOK_LIMIT = 2.0  # seconds that looking at the files, and again sampling them, may take
SAMPLES = 4
SAMPLE_SIZE = 1 << 20  # bytes: large enough to hide the cost of opening the file; read in 10 ms
SMALLEST_MODEL = 64 << 20  # bytes; smaller models load too fast to be worth an estimate
TRIAL_TOKENS = 4
GENERATING = ("LM", "Generation", "generation")  # in names of classes that need its settings
SPREADING = ("auto", "balanced", "balanced_low_0", "sequential")
WITHOUT_WEIGHTS = ("Tokenizer", "Processor", "FeatureExtractor")
_loading = threading.local()  # attribute source: of the load that runs in this thread, or None


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
    recorder = current()
    with watched_load(name_or_path, loader.__name__, named):
        result = loader.from_pretrained(name_or_path, **named)
    loaded = result[0] if isinstance(result, tuple) else result
    attempt("a look at the pad token", models.give_pad_token, loaded, recorder)
    attempt("a look at the model", models.look_at_model, loaded, recorder)
    if hasattr(loaded, "named_parameters") and not recorder.settings.disable:
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
    """Generate four tokens without sampling, unless that would wait for other ranks."""
    import torch

    can_generate = getattr(model, "can_generate", None)
    if not (callable(can_generate) and can_generate()):
        return
    if models.are_shared_out(model.parameters()):
        recorder.say("test generation: left out, because its parameters are shared out over ranks")
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
    weight_files: dict[Path, int] = {}  # bytes of each; 0 of a pipe
    file_of_weight: dict[str, str] = {}  # if there is an index
    has_generation_config: bool = False


def find_source(name: str, named: Mapping[str, Any]) -> Source:
    """Find where ``from_pretrained`` will read from, without network access."""
    from huggingface_hub import constants, try_to_load_from_cache

    offline = bool(named.get("local_files_only")) or bool(constants.HF_HUB_OFFLINE)
    root, is_folder = Path(name), Path(name).is_dir()
    if not is_folder:
        place, cached = {key: named.get(key) for key in ("cache_dir", "revision")}, None
        with suppress(ValueError):  # no valid hub name, for example a path of three parts
            cached = try_to_load_from_cache(name, "config.json", **place)
        if not isinstance(cached, str):
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
    return Source("folder" if is_folder else "cache", offline, sizes, held, configured)


def traps(
    name: str, loader: str, named: Mapping[str, Any], source: Source, ranks: int
) -> Iterator[str]:
    """Name each trap in a load's arguments, and how to avoid it."""
    device_map = named.get("device_map")
    places = device_map.values() if isinstance(device_map, dict) else ()
    if named.get("offload_state_dict"):
        yield (
            "offload_state_dict=True (ignored from transformers 4.57 on) writes all weights to "
            "disk and reads them back: on slow storage loading seems never to end; leave it out, "
            "and limit memory with max_memory={0: '20GiB', 'cpu': '60GiB'}"
        )
    if device_map is not None and (named.get("offload_folder") is not None or "disk" in places):
        yield (
            "with a device map and offload_folder, what does not fit goes to disk: its parameters "
            "stay on the meta device, each forward pass reads them again, and DDP, FSDP or "
            "model.to() fail on them or never end; leave it out, and load in 8 bits, on more GPUs, "
            "or with a max_memory map that holds the whole model"
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
    # what the cache lacks, the hub may have
    is_all = source.kind == "folder" or (source.kind == "cache" and source.offline)
    if is_all and not source.has_generation_config and any(word in loader for word in GENERATING):
        yield (
            "it has no generation_config.json: GenerationConfig.from_pretrained fails for it, and "
            "asks the network first where the model is given by its hub name; use "
            "GenerationConfig.from_model_config(model.config)"
        )


@contextmanager
def watched_load(
    name: object, loader: str, named: Mapping[str, Any], *, by_hand: bool = True
) -> Iterator[None]:
    """Report what will be loaded and its traps; then how far the load in the body has come.

    A load within a load belongs to the outer one. A load ``by_hand`` is a section, and its time is
    estimated.
    """
    nested = getattr(_loading, "source", None) is not None
    if nested or current().settings.disable or not isinstance(name, (str, os.PathLike)):
        yield
        return
    look = partial(look_ahead, str(name), loader, named, estimate=by_hand)
    _loading.source = attempt("looking at the files", look) or Source()
    # transformers 4.48 to 5.23 use ``transformers.utils.logging.tqdm`` for each file (4.x) or
    # weight (5.x). A version that does not still loads, without progress.
    attempt("the progress of loading", _watch_bars)
    title = f"{kind_of(loader)[0]} from_pretrained ({loader})"
    try:
        with Section(current(), title) if by_hand else nullcontext():
            yield
    finally:
        _loading.source = None


def kind_of(loader: str) -> tuple[str, Number | None]:
    """Return what a class of this name loads, and the checkpoint that this proves."""
    if any(word in loader for word in WITHOUT_WEIGHTS):
        return "tokenizer", 4
    return ("model config", None) if "Config" in loader else ("model", 5)


def look_ahead(name: str, loader: str, named: Mapping[str, Any], *, estimate: bool) -> Source:
    """Report what will be loaded, which traps that meets and how long it may take, in 4 s."""
    recorder, source, (what, _) = current(), Source(), kind_of(loader)
    try:
        source = within(LOOK_LIMIT, partial(find_source, name, named))
        where = {"folder": "", "cache": " from the cache of the hub", "hub": " from the hub"}
        local = "the local folder " if source.kind == "folder" else ""
        parts = [f"{loader}.from_pretrained will read {local}{name}{where[source.kind]}"]
        files, size = source.weight_files, sum(source.weight_files.values())
        if what == "model":
            if files:
                parts.append(f"{several(len(files), 'weight file')}, {bytes_in_words(size)}")
            dtype = named.get("dtype", named.get("torch_dtype", "transformers' default"))
            parts.append(f"device_map={named.get('device_map')!r}; dtype={dtype}")
        parts.append("offline: the hub is not asked" if source.offline else "online")
        recorder.say("; ".join(parts))
        ranks = recorder.identity.world_size or 1
        for trap in traps(name, loader, named, source, ranks) if what != "tokenizer" else ():
            recorder.say(f"WARNING: {trap}")
        if estimate and what == "model" and size >= SMALLEST_MODEL:
            rate = within(LOOK_LIMIT, partial(sampled_rate, files))
            recorder.say(
                f"reading may take about {size / rate:.0f} s (an estimate: {bytes_in_words(size)} "
                f"at {bytes_in_words(rate)}/s, measured just now on a sample of the files)"
            )
    except NoAnswer as error:
        recorder.say(f"WARNING: the files of {name} were not read in time: {error}")
    return source


def sampled_rate(files: Mapping[Path, int]) -> float:
    """Read samples of the largest file; return the bytes per second."""
    started, read, largest = time.perf_counter(), 0, max(files, key=files.__getitem__)
    with largest.open("rb", buffering=0) as file:
        for number in range(SAMPLES):
            file.seek(files[largest] * number // SAMPLES)
            read += len(file.read(SAMPLE_SIZE))
    return read / (time.perf_counter() - started)


def with_progress(items: Iterable[object], source: Source) -> Iterator[object]:
    """Yield a bar's items: each is a sign of life, and the last weight of a file a line."""
    sizes = {file.name: size for file, size in source.weight_files.items()}
    left, untold, since = Counter(source.file_of_weight.values()), {**sizes}, time.monotonic()

    def tell_file(name: str) -> None:
        nonlocal since
        if untold.pop(name, None) is not None:
            before, since = since, time.monotonic()
            of = f"{[*sizes].index(name) + 1}/{len(sizes)}"
            size, took = bytes_in_words(sizes[name]), since - before
            current().say(f"loaded weight file {of} {name} ({size}, {took:.3f}s)")

    def tell(item: object) -> None:
        models.sign_of_life(current())
        # transformers 5: a weight's name and mapping; before: a file, or arguments that begin so
        name, *rest = item if isinstance(item, tuple) else (item,)
        targets = getattr(rest[0] if rest else None, "layer_targets", None) or {"": [str(name)]}
        for key in {key for keys in targets.values() for key in keys}:
            file = source.file_of_weight.get(key) or Path(key).name
            left[file] -= 1
            if left[file] <= 0 or key not in source.file_of_weight:
                tell_file(file)

    for item in items:
        yield item
        attempt("telling of a weight", tell, item)
    for name in sizes:  # files with weights that the model does not have
        attempt("telling of a weight", tell_file, name)


@cache
def _watch_bars() -> None:
    from transformers.utils import logging

    @contextmanager
    def progress_bar(call: Call) -> Iterator[None]:
        source, title = getattr(_loading, "source", None), str(call.named.get("desc"))
        if source is not None and call.arguments and title.startswith("Loading"):
            items, *rest = call.arguments
            total = len(items) if hasattr(items, "__len__") else None
            call.named = {"total": total, **call.named}
            call.arguments = (with_progress(items, source), *rest)
        yield

    wrap(type(logging.tqdm), "__call__", progress_bar)


def instrument_loading(module: ModuleType) -> None:
    """Watch what the classes of this module of transformers load."""
    # Each AutoModel has copies of these methods (auto_factory.py, copy_func), so each is wrapped.

    @contextmanager
    def loading(call: Call) -> Iterator[None]:
        name = next(iter(call.arguments), call.named.get("pretrained_model_name_or_path"))
        name = call.named.get("pretrained_model_name") if name is None else name
        with watched_load(name, call.instance.__name__, call.named, by_hand=False):
            yield
        if getattr(_loading, "source", None) is None:  # else whoever began the load looks
            attempt("a look at the model", models.look_at_model, call.result, current())

    def title(call: Call) -> str:
        loader = call.instance.__name__
        return f"{kind_of(loader)[0]} {call.function.__name__} ({loader})"

    for owner in [var for var in vars(module).values() if isinstance(var, type)]:
        if owner.__module__ == module.__name__ and "from_pretrained" in vars(owner):
            what, number = kind_of(owner.__name__)
            kind, then = what.partition(" ")[0], number and passing(number)
            wrap(owner, "from_pretrained", in_section(kind, title, then, loading))
            wrap(owner, "from_config", in_section(kind, title, then))
