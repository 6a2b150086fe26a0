"""A tiny real model: saved in shards, loaded and generating through hc.transformers and without."""

import time
from pathlib import Path

import torch
import transformers
from saying import page, say
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import lightning_hangcheck as hc
from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.hooks.models import offloaded_so_far
from lightning_hangcheck.recorder.lifecycle import current

UNKNOWN, START, END = "<unk>", "<s>", "</s>"
PROMPTS = ["w1 w2 w3", "w4 w5"]
LIMITS = hc.transformers.Limits(max_new_tokens=6, max_length=5)


def save_model(folder):
    torch.manual_seed(0)
    words = [UNKNOWN, START, END, *(f"w{number}" for number in range(61))]
    vocabulary = {word: number for number, word in enumerate(words)}
    fast = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    fast.pre_tokenizer = pre_tokenizers.Whitespace()
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64}
    model = LlamaForCausalLM(LlamaConfig(**sizes, **heads, bos_token_id=1, eos_token_id=2))
    special = {"bos_token": START, "eos_token": END, "unk_token": UNKNOWN}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=fast, padding_side="left", **special)
    model.save_pretrained(folder, max_shard_size="30KB")
    tokenizer.save_pretrained(folder)
    return model


class Spying(LlamaForCausalLM):
    phase_in_constructor = None

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        Spying.phase_in_constructor = page().phase


def load(saved):
    random_state = torch.get_rng_state()
    tokenizer = hc.transformers.load_pretrained("model", PreTrainedTokenizerFast)
    model = hc.transformers.load_pretrained("model", Spying)
    same = [torch.equal(a, b) for a, b in zip(saved.parameters(), model.parameters(), strict=True)]
    say(
        "loaded",
        phase=Spying.phase_in_constructor,
        same=all(same),
        random_untouched=torch.equal(random_state, torch.get_rng_state()),
        beats_by_hand=current().beats.count > 0,
        pad=[tokenizer.pad_token, model.config.pad_token_id, model.generation_config.pad_token_id],
    )
    return model, tokenizer


KINDS = {
    "greedy": {"max_new_tokens": 12},
    "sampled": {"max_new_tokens": 12, "do_sample": True, "temperature": 0.8},
    "beams": {"max_new_tokens": 12, "num_beams": 3, "num_return_sequences": 2},
}
PIPED = {"max_new_tokens": 8, "temperature": 0.7, "batch_size": 2}


def generate_plainly(model, tokenizer):
    """What transformers makes by itself, before ours has its calls watched."""
    made = {}
    inputs = tokenizer(PROMPTS, return_tensors="pt", padding=True)
    inputs.pop("token_type_ids", None)
    for kind, flags in KINDS.items():
        torch.manual_seed(1)
        made[kind] = model.generate(**inputs, **flags)
    plain = transformers.pipeline("text-generation", model, tokenizer=tokenizer)
    torch.manual_seed(2)
    return {**made, "width": inputs["input_ids"].shape[1], "piped": plain(PROMPTS, **PIPED)}


def generate_alike(model, tokenizer, plain):
    for kind, flags in KINDS.items():
        torch.manual_seed(1)
        made = hc.transformers.generate(model, tokenizer, PROMPTS, **flags)
        texts = tokenizer.batch_decode(plain[kind][:, plain["width"] :], skip_special_tokens=True)
        say(kind, same=torch.equal(plain[kind], made.output), texts=made.texts == texts)
    say(
        "report",
        prompts=made.report.prompts,
        prompt_tokens=made.report.prompt_tokens,
        device=made.report.device,
        rate=made.report.tokens_per_second,
    )


class Stop:
    """A user's criterion: notes the phase and the last sign of life, and raises when it should."""

    def __init__(self, raise_at=None):
        self.beats, self.phases, self.raise_at = [], set(), raise_at

    def __call__(self, input_ids, scores, **_):
        self.beats.append(page().last_beat_ns)
        pulse_ns = page().pulse_ns
        while len(self.beats) == 5 and page().pulse_ns == pulse_ns:
            time.sleep(0.01)
        self.phases.add(page().phase)
        if len(self.beats) == self.raise_at:
            raise LookupError("the user's own")
        return torch.zeros(len(input_ids), dtype=torch.bool)


def generate_watched(model, tokenizer):
    stop = Stop()
    flags = {"max_new_tokens": 20, "min_new_tokens": 20, "stopping_criteria": [stop]}
    made = hc.transformers.generate(model, tokenizer, "w1", warn_after_s=0.001, **flags)
    say(
        "watched",
        new_tokens=made.report.new_tokens,
        beats=[after - before for before, after in zip(stop.beats, stop.beats[1:], strict=False)],
        phases=sorted(stop.phases),
        warnings=made.report.warnings,
    )
    try:
        flags["stopping_criteria"] = [Stop(raise_at=3)]
        hc.transformers.generate(model, tokenizer, "w1", **flags)
    except LookupError as error:
        say("raised", error=str(error), open_sections=len(page().sections))


def generate_limited(model, tokenizer):
    long = ["w7 " * 9, "w8"]
    flags = {"max_new_tokens": 50, "temperature": 0.3}
    made = hc.transformers.generate(model, tokenizer, long, debug=LIMITS, **flags)
    say(
        "limited",
        truncated=made.report.truncated_prompts,
        prompt_tokens=made.report.prompt_tokens,
        asked=made.report.max_new_tokens_cut,
        columns=made.output.shape[1],
        warnings=made.report.warnings,
    )


def use_pipelines(model, tokenizer, plain):
    ours = hc.transformers.pipeline("text-generation", model, tokenizer=tokenizer)
    torch.manual_seed(2)
    say(
        "pipeline",
        same=ours(PROMPTS, **PIPED) == plain["piped"],
        kind=isinstance(ours, transformers.TextGenerationPipeline),
        prompts=ours.last_report.prompts,
        new_tokens=ours.last_report.new_tokens > 0,
        warnings=ours.last_report.warnings,
    )


def walk_into_traps(tokenizer):
    places = {f"model.layers.{number}": "cpu" for number in range(3)}
    others = dict.fromkeys(
        ("model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head"), "cpu"
    )
    hc.checkpoint("traps")
    model = hc.transformers.load_pretrained(
        "model",
        "LlamaForCausalLM",
        test_generation=False,
        device_map={**places, **others, "model.layers.3": "disk"},
        offload_folder="offloaded",
        offload_state_dict=True,
    )
    made = hc.transformers.generate(model, tokenizer, "w1", max_new_tokens=2)
    say("traps", warnings=made.report.warnings, offloaded=list(offloaded_so_far))


def fail_as_without_us():
    Path("empty").mkdir()
    errors = []
    for loads in (
        lambda: LlamaForCausalLM.from_pretrained("empty"),
        lambda: hc.transformers.load_pretrained("empty", LlamaForCausalLM),
    ):
        try:
            loads()
        except OSError as error:
            errors.append([type(error).__name__, str(error)])
    try:
        hc.transformers.load_pretrained("empty", "NoSuchClass")
    except BadUsage as error:
        errors.append([type(error).__name__, str(error)])
    say("failed", errors=errors)


def break_our_own_part():
    """A damaged index is no matter for a tokenizer, but our look at the weights stumbles on it."""
    Path("model/model.safetensors.index.json").write_text("{")
    tokenizer = hc.transformers.load_pretrained("model", PreTrainedTokenizerFast)
    say("stumbled", words=len(tokenizer))


saved = save_model("model")
model, tokenizer = load(saved)
plain = generate_plainly(model, tokenizer)
generate_alike(model, tokenizer, plain)
generate_watched(model, tokenizer)
generate_limited(model, tokenizer)
use_pipelines(model, tokenizer, plain)
walk_into_traps(tokenizer)
fail_as_without_us()
break_our_own_part()
