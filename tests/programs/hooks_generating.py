"""Plain calls of ``generate`` that are watched: what the page shows at each token."""

import json
import os
import threading

import torch
from transformers import GPT2Config, GPT2LMHeadModel, StoppingCriteria
from transformers.generation import utils

from lightning_hangcheck.hooks.generating import instrument_generation
from lightning_hangcheck.recorder.lifecycle import current
from lightning_hangcheck.recorder.page import PageReader

SIZE = {"n_layer": 1, "n_head": 1, "n_embd": 8, "vocab_size": 16, "n_positions": 64}
PROMPT = torch.tensor([[3, 4, 5]])


class Look(StoppingCriteria):
    """The script's own criterion: called after ours."""

    def __init__(self):
        self.pages = []

    def __call__(self, input_ids, scores, **_):
        reader = PageReader(current().session.pages / f"{os.getpid()}.page")
        self.pages.append(reader.read())
        reader.close()
        return torch.zeros(len(input_ids), dtype=torch.bool)


def say(event, **words):
    os.write(1, (json.dumps({"event": event, "rank": 0, **words}) + "\n").encode())


def generate(**named):
    return model.generate(PROMPT, max_new_tokens=8, min_new_tokens=8, **named)


def seen(event):
    look = Look()
    generate(stopping_criteria=[look])
    times = [page.last_beat_ns for page in look.pages]
    say(
        event,
        phases=sorted({str(page.phase) for page in look.pages}),
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
