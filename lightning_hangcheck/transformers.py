"""`hc.transformers`: models and tokenizers that load and generate with a view of what they do.

    import lightning_hangcheck as hc

    tokenizer = hc.transformers.load_pretrained("./llama", "AutoTokenizer")
    model = hc.transformers.load_pretrained("./llama", device_map="auto")
    made = hc.transformers.generate(model, tokenizer, "Once upon a time", max_new_tokens=100)

Importing this imports neither torch nor transformers; a call does.
"""

from __future__ import annotations

from lightning_hangcheck.hooks.pretrained.generation.generated import Generated, GenerationReport
from lightning_hangcheck.hooks.pretrained.generation.generating import generate
from lightning_hangcheck.hooks.pretrained.generation.pipelines import pipeline
from lightning_hangcheck.hooks.pretrained.generation.token_limits import Limits
from lightning_hangcheck.hooks.pretrained.gpu_memory import GpuMemory
from lightning_hangcheck.hooks.pretrained.loading.loading import load_pretrained

__all__ = [
    "Generated",
    "GenerationReport",
    "GpuMemory",
    "Limits",
    "generate",
    "load_pretrained",
    "pipeline",
]
