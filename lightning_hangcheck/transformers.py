"""`hc.transformers`: load models and tokenizers and generate, with progress and checks.

    import lightning_hangcheck as hc

    tokenizer = hc.transformers.load_pretrained("./llama", "AutoTokenizer")
    model = hc.transformers.load_pretrained("./llama", device_map="auto")
    made = hc.transformers.generate(model, tokenizer, "Once upon a time", max_new_tokens=100)

Importing this imports neither torch nor transformers; a call does.
"""

from __future__ import annotations

from lightning_hangcheck.hooks.generating import (
    Generated,
    GenerationReport,
    Limits,
    generate,
    pipeline,
)
from lightning_hangcheck.hooks.loading import load_pretrained
from lightning_hangcheck.hooks.models import GpuMemory

__all__ = [
    "Generated", "GenerationReport", "GpuMemory", "Limits", "generate", "load_pretrained",
    "pipeline",
]  # fmt: skip
