"""Plain calls of ``generate`` that are watched: what the page shows at each token."""

import threading

import torch
from saying import page, say
from transformers import GPT2Config, GPT2LMHeadModel, StoppingCriteria
from transformers.generation import utils

from lightning_hangcheck.hooks.generating import instrument_generation

SIZE = {"n_layer": 1, "n_head": 1, "n_embd": 8, "vocab_size": 16, "n_positions": 64}
PROMPT = torch.tensor([[3, 4, 5]])


class Look(StoppingCriteria):
    """The script's own criterion: called after ours."""

    def __init__(self):
        self.pages = []

    def __call__(self, input_ids, scores, **_):
        self.pages.append(page())
        return torch.zeros(len(input_ids), dtype=torch.bool)


def generate(**named):
    return model.generate(PROMPT, max_new_tokens=8, min_new_tokens=8, **named)


def seen(event):
    look = Look()
    generate(stopping_criteria=[look])
    times = [beat.last_beat_ns for beat in look.pages]
    say(
        event,
        phases=sorted({str(beat.phase) for beat in look.pages}),
        moves=[times[place] > times[place - 1] for place in range(1, len(times))],
        sections=[section.name for section in look.pages[0].sections],
        beats=look.pages[-1].beats,
    )


model = GPT2LMHeadModel(GPT2Config(**SIZE, bos_token_id=0, eos_token_id=1, pad_token_id=1))
instrument_generation(utils)
seen("main")
thread = threading.Thread(target=seen, args=("thread",))
thread.start()
thread.join()
