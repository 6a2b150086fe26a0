"""A script that never heard of this package: loads a tiny model, generates plainly and by pipeline.

The last line that it prints is every token and text that came of it.
"""

import threading

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    StoppingCriteria,
    pipeline,
)

SIZE = {"n_layer": 1, "n_head": 1, "n_embd": 8, "vocab_size": 16, "n_positions": 64}
START, END, UNKNOWN = "<s>", "</s>", "<unk>"
IDS = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}


class Stop(StoppingCriteria):
    """The script's own."""

    def __call__(self, input_ids, scores, **_):
        return torch.full((len(input_ids),), input_ids.shape[1] >= 9)


def made_here():
    torch.manual_seed(0)
    words = {START: 0, END: 1, UNKNOWN: 2, **{f"w{number}": number for number in range(3, 16)}}
    fast = Tokenizer(models.WordLevel(words, unk_token=UNKNOWN))
    fast.pre_tokenizer = pre_tokenizers.Whitespace()
    GPT2LMHeadModel(GPT2Config(**SIZE, **IDS)).save_pretrained("model")
    special = {"bos_token": START, "eos_token": END, "unk_token": UNKNOWN}
    return PreTrainedTokenizerFast(tokenizer_object=fast, **special)


tokenizer = made_here()
model = AutoModelForCausalLM.from_pretrained(
    "model", device_map={"": "cpu"}, offload_folder="offloaded"
)
config = GenerationConfig.from_pretrained("model")
prompts = torch.tensor([[3, 4, 5], [6, 7, 8]])
made = [
    model.generate(prompts, max_new_tokens=5, min_new_tokens=5).tolist(),
    model.generate(prompts, config, None, [Stop()]).tolist(),
    model.generate(input_ids=prompts, stopping_criteria=[Stop()], do_sample=True).tolist(),
    model.generate(
        prompts, num_beams=2, max_new_tokens=4, return_dict_in_generate=True
    ).sequences.tolist(),
]
write = pipeline("text-generation", model=model, tokenizer=tokenizer)
made.append(write("w3 w4", max_new_tokens=4, do_sample=False))
thread = threading.Thread(target=lambda: made.append(model.generate(prompts).tolist()))
thread.start()
thread.join()
try:
    model.generate(prompts, max_new_tokens=-1)
except ValueError as error:
    made.append(str(error))
print(made)
