"""A script that never heard of this package: loads a tiny model, and generates plainly.

The last line that it prints is every token that came of it.
"""

import torch
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    GPT2Config,
    GPT2LMHeadModel,
    StoppingCriteria,
)

SIZE = {"n_layer": 1, "n_head": 1, "n_embd": 8, "vocab_size": 16, "n_positions": 64}
IDS = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}


class Stop(StoppingCriteria):
    """The script's own."""

    def __call__(self, input_ids, scores, **_):
        return torch.full((len(input_ids),), input_ids.shape[1] >= 9)


torch.manual_seed(0)
GPT2LMHeadModel(GPT2Config(**SIZE, **IDS)).save_pretrained("model")
model = AutoModelForCausalLM.from_pretrained(
    "model", device_map={"": "cpu"}, offload_folder="offloaded"
)
config = GenerationConfig.from_pretrained("model")
prompts = torch.tensor([[3, 4, 5], [6, 7, 8]])
made = [
    model.generate(prompts, max_new_tokens=5, min_new_tokens=5).tolist(),
    model.generate(prompts, config, None, [Stop()]).tolist(),
    model.generate(input_ids=prompts, stopping_criteria=[Stop()], do_sample=True).tolist(),
]
try:
    model.generate(prompts, max_new_tokens=-1)
except ValueError as error:
    made.append(str(error))
print(made)
