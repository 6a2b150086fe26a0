"""Does a checkpoint belong to the model that will load it? Pure: two sets of files compared.

A tensor is compared with the one that the backbone's own weights have under that name, or else
with the shape that its config.json asks for. What neither knows is compared with nothing.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lightning_hangcheck.doctor.needed.weight_files import Shape
from lightning_hangcheck.planning.config import FAMILIES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lightning_hangcheck.doctor.needed.model_files import ModelFiles
    from lightning_hangcheck.planning.config import Fields

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
WRAPPERS = (
    "state_dict",
    "model_state_dict",
    "model",
    "module",
    "base_model",
    "backbone",
    "llm",
    "language_model",
    "transformer",
    "net",
    "_orig_mod",
    "_forward_module",
    "_fsdp_wrapped_module",
)
"""Words that trainers, compilers and scripts put before a tensor's own name; a module of another
name may hold layers of its own, so its tensors are not taken for the backbone's."""
BILLIONS = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)[bB](?![\w.])")
"""The size in a model's name, Qwen2.5-1.5B; not the 2.5."""


def own_name(tensor: str) -> str:
    """Return a tensor's name without the wrappers before it: ``layers.0.mlp.up_proj.weight``."""
    words = tensor.split(".")
    while len(words) > 1 and words[0] in WRAPPERS:
        words.pop(0)
    return ".".join(words)


def compare_configs(checkpoint: Fields, backbone: Fields) -> list[str]:
    """Say in what two configurations differ: ``hidden size 1536, not 896``."""
    pairs = ((words, getattr(checkpoint, f), getattr(backbone, f)) for f, words in SIZES.items())
    return [f"{words} {there}, not {here}" for words, there, here in pairs if there != here]


def compare_shapes(checkpoint: ModelFiles, backbone: ModelFiles) -> tuple[int, list[str]]:
    """Compare every tensor that both know.

    Returns:
        How many could be compared, and in words each that differs.
    """
    asked = dict(_by_config(backbone.fields)) if backbone.fields is not None else {}
    asked |= {own_name(name): shape for name, shape in backbone.shapes.items()}
    compared, differing = 0, []
    for name, shape in checkpoint.shapes.items():
        sides = _sides(name, shape, asked)
        if sides is None:
            continue
        compared += 1
        there, here = sides
        if there != here:
            differing.append(f"{name} is {there}, not {here}")
    return compared, differing


def layers_beyond(checkpoint: ModelFiles, backbone: ModelFiles) -> int:
    """Return how many layers the checkpoint has that the backbone does not have."""
    if backbone.fields is None or backbone.fields.two_stacks:
        return 0
    numbers = (LAYER.match(own_name(name)) for name in checkpoint.shapes)
    most = max((int(number[1]) + 1 for number in numbers if number), default=0)
    return max(0, most - backbone.fields.layers)


def has_side(checkpoint: ModelFiles, side: int) -> bool:
    """Whether any tensor could take or give vectors of this length."""
    return any(side in shape for shape in checkpoint.shapes.values())


def sizes_in_names_differ(base: str, backbone: str) -> bool:
    """Whether both names tell a size, and another one: Qwen2.5-1.5B and Qwen2.5-0.5B."""
    names = (name.rpartition("/")[2] for name in (base, backbone))
    sizes = [{float(one) for one in BILLIONS.findall(name)} for name in names]
    return all(sizes) and sizes[0].isdisjoint(sizes[1])


def _sides(name: str, shape: Shape, asked: Mapping[str, Shape]) -> tuple[Shape, Shape] | None:
    """What a tensor has and what it must have; of a low-rank part the side that is the layer's."""
    lora = LORA.search(name)
    wanted = asked.get(own_name(LORA.sub(".weight", name)))
    if wanted is None or _is_packed(shape):
        return None
    if lora is None:
        return shape, wanted
    if len(shape) != 2 or len(wanted) != 2:
        return None
    at = 1 if lora[1] == "A" else 0
    side = Shape((shape[at],))
    # Conv1D of GPT-2 keeps inputs x outputs, nn.Linear outputs x inputs
    return (side, side) if shape[at] in wanted else (side, Shape((wanted[at],)))


def _is_packed(shape: Shape) -> bool:
    """Four-bit weights of bitsandbytes are kept in one column."""
    return len(shape) == 2 and shape[1] == 1


def _by_config(fields: Fields) -> Iterator[tuple[str, Shape]]:
    """Shapes that follow from sizes, for families whose layers are built as these names say."""
    if fields.model_type not in FAMILIES or fields.latent or fields.two_stacks:
        return
    words = Shape((fields.vocabulary, fields.hidden))
    yield from ((name, words) for name in ("embed_tokens.weight", "wte.weight", "lm_head.weight"))
    queries, keys = fields.heads * fields.head_dim, fields.kv_heads * fields.head_dim
    attention = {"q": queries, "k": keys, "v": keys}
    for layer in range(fields.layers):
        of_layer = f"layers.{layer}"
        for letter, width in attention.items():
            yield f"{of_layer}.self_attn.{letter}_proj.weight", Shape((width, fields.hidden))
        yield f"{of_layer}.self_attn.o_proj.weight", Shape((fields.hidden, queries))
        if not fields.experts:
            wide = fields.intermediate
            yield f"{of_layer}.mlp.gate_proj.weight", Shape((wide, fields.hidden))
            yield f"{of_layer}.mlp.up_proj.weight", Shape((wide, fields.hidden))
            yield f"{of_layer}.mlp.down_proj.weight", Shape((fields.hidden, wide))
