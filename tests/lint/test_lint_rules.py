"""Each rule finds its own example, and not the mended one; harmless idioms are no errors."""

from __future__ import annotations

import re
import sys
import textwrap
from typing import TYPE_CHECKING, Any

import pytest

from lightning_hangcheck.lint.linting import Configuration, Finding, lint
from lightning_hangcheck.lint.rules import RULES

if TYPE_CHECKING:
    from pathlib import Path
    from types import FrameType

IMPORTS = """\
import signal
import threading
import multiprocessing
import os
import torch
import torch.distributed as dist
import lightning
import wandb
from filelock import FileLock
from lightning.pytorch.utilities import rank_zero_only
from torch.nn.parallel import DistributedDataParallel
rank = dist.get_rank()
dist.init_process_group()
"""


def found(folder: Path, source: str, **settings: object) -> list[Finding]:
    file = folder / "train.py"
    file.write_text(IMPORTS + textwrap.dedent(source))
    configuration = Configuration(**{"notes": True, **settings})
    result = lint([file], configuration, folder)
    assert not result.unreadable
    return result.findings


def example(doc: str, name: str) -> str:
    """The code below a heading of a docstring, in a function or class where it needs one."""
    _, _, rest = textwrap.dedent(" " * 4 + doc).partition(f"{name}:\n")
    lines = []
    for line in rest.splitlines():
        if line.strip() and not line.startswith(" " * 4):
            break
        lines.append(line[4:])
    code = "\n".join(lines)
    if "self" in code and "def " in code:
        return "class Module(lightning.LightningModule):\n" + textwrap.indent(code, "    ")
    return "def step(self, batch, loss, mask, scores, trainer):\n" + textwrap.indent(code, "    ")


@pytest.mark.parametrize("code", RULES)
def test_rule_finds_its_own_example_and_not_the_mended_one(code: str, tmp_path: Path) -> None:
    """As its page shows them."""
    wrong, mended = (example(RULES[code].doc, name) for name in ("Example", "Instead"))
    assert code in {one.code for one in found(tmp_path, wrong)}
    assert code not in {one.code for one in found(tmp_path, mended)}


ERRORS = {
    "a function that says which rank it is, in steps": """
        def is_first():
            if "RANK" in os.environ:
                if os.environ["RANK"] == "": return False
                else:
                    if int(os.environ["RANK"]) == 0: return True
                    return False
            return True
        if is_first(): dist.barrier()""",
    "a rank that spawn gives under another name": """
        def work(gpu, model):
            if gpu == 0: evaluate(gpu)
        def evaluate(device): Evaluation(device).run()
        class Evaluation:
            def __init__(self, device): self.device = device
            def run(self):
                if self.device == 0: dist.barrier()
        torch.multiprocessing.spawn(work, args=(model,), nprocs=2)""",
    "a wrapper that runs a function on one rank": """
        def save(): dist.barrier()
        accelerator.on_main_process(save)()""",
    "a rank that is read by text": """
        def save(args):
            number = int(getattr(args, "process_index", 0))
            if number == 0: dist.barrier()""",
    "where a flag of one rank does not hold": """
        missing = rank == 0 and not os.path.exists("saved")
        if rank == 0:
            if missing: print("skipped")
            else: dist.barrier()""",
    "a name for its own data": """
        for batch in batches:
            loss = step(batch)
            bad = not torch.isfinite(loss)
            if bad: continue
            dist.all_reduce(loss)""",
    "the one rank leaves where its work fails": """
        def save(state):
            if rank == 0:
                try: write(state)
                except OSError: return
            dist.barrier()""",
    "the one rank leaves for a reason of its own": """
        for epoch in range(9):
            if rank == 0:
                score = validate()
                if score > best: best = score
                elif epoch > patience: break
            dist.barrier()""",
    "the second rank leaves for a reason of its own": """
        for epoch in range(9):
            if dist.get_rank() == 1:
                if validate() > best: break
            dist.barrier()""",
    "a choice in an expression": """
        def mean(loss): return dist.all_reduce(loss) if rank == 0 else None""",
    "a function for rank 0 stops the trainer": """
        class Limit(lightning.Callback):
            @rank_zero_only
            def check(self, trainer): trainer.should_stop = True""",
    "an error that it raises for its own data": """
        for batch in batches:
            try:
                loss = step(batch)
                if not torch.isfinite(loss): raise ValueError(loss)
                dist.all_reduce(loss)
            except ValueError: print(batch)""",
    "an object of the class that a function says it returns": """
        class World:
            @classmethod
            def get(cls) -> "World": return only
            def mean(self, value): dist.all_reduce(value)
        class Report:
            def __init__(self): self.world = World.get()
            def write(self, value):
                if rank == 0: self.world.mean(value)""",
    "a constructor": """
        class Gatherer:
            def __init__(self): dist.all_gather_object([], 1)
        def report():
            if rank == 0: Gatherer()""",
    "a name for the test": """
        class Report:
            def __init__(self): self.boss = dist.get_rank() == 0
            def write(self):
                if self.boss: dist.barrier()""",
    "a partial": """
        import functools
        def gather(x): dist.all_reduce(x)
        later = functools.partial(gather, 1)
        if rank == 0: later()""",
    "a decorator of the project": """
        def on_main(function):
            def wrapper(*args):
                if dist.get_rank() == 0: return function(*args)
            return wrapper
        @on_main
        def save(): dist.barrier()""",
    "the last statement of a loop's pass": """
        def train(batches):
            for batch in batches:
                if dist.get_rank() == 0: continue
                dist.all_reduce(batch)""",
    "an argument that switches it on": """
        def log(value, sync=False):
            if sync: dist.all_reduce(value)
        if rank == 0: log(1, sync=True)""",
    "a metric": """
        import torchmetrics
        class Module(lightning.LightningModule):
            def __init__(self): self.mean = torchmetrics.MeanMetric()
            def on_validation_end(self):
                if self.trainer.is_global_zero: self.mean.compute()""",
    "its own data": """
        def accumulate(batch):
            found = batch[batch > 0]
            if found.numel() == 0: return 0
            return dist.all_reduce(found.sum())""",
    "a batch that failed": """
        def train(loader):
            for batch in loader:
                try: loss = forward(batch)
                except torch.cuda.OutOfMemoryError: continue
                dist.all_reduce(loss)""",
    "an end of a transformers Trainer": """
        class Stop(TrainerCallback):
            def on_step_end(self, args, state, control, **rest):
                if state.is_world_process_zero: control.should_training_stop = True""",
    "a flag that one rank sets": """
        def train(loader):
            stop = False
            for batch in loader:
                dist.all_reduce(batch)
                if rank == 0 and converged(batch): stop = True
                if stop: break""",
    "a writer that one rank has": """
        class Trainer:
            def __init__(self): self.writer = wandb.init() if rank == 0 else None
            def log(self, loss):
                if self.writer is not None: self.writer.log(dist.all_reduce(loss))""",
    "its own clock": """
        import time
        class Trainer:
            def step(self, began):
                self.loss = dist.all_reduce(self.loss)
                passed = time.time() - began
                if self.every > 0 and passed > self.every: dist.barrier()""",
    "a file that the first rank makes meanwhile": """
        def cache(path):
            if not os.path.exists(path):
                if rank == 0: build(path)
                dist.barrier()""",
    "a group of all ranks": """
        gloo = dist.new_group(backend="gloo")
        def write(value):
            if rank == 0: dist.all_reduce(value, group=gloo)""",
    "a backward pass that one rank leaves out": """
        class Module(lightning.LightningModule):
            def training_step(self, batch):
                if self.global_rank != 1: self.manual_backward(loss)
                self.optimizers().step()""",
    "a method of a class above": """
        class Base:
            def sync(self): dist.barrier()
        class Trainer(Base):
            def save(self):
                if rank == 0: self.sync()""",
    "groups that one rank takes in another order": """
        data, tensor = make_groups()
        def reduce(x):
            first, second = (data, tensor) if rank == 0 else (tensor, data)
            dist.all_reduce(x, group=first)
            dist.all_reduce(x, group=second)""",
}


@pytest.mark.parametrize("name", ERRORS)
def test_one_side_alone_is_an_error_through(name: str, tmp_path: Path) -> None:
    findings = found(tmp_path, ERRORS[name])
    assert [one.severity for one in findings] == ["error"]
    assert findings[0].code[:3] in ("HC1", "HC2", "HC3", "HC5")


NOTES = {
    "a flag that a try sets": """
        done = False
        try:
            work()
            done = True
        finally:
            <<if done: >>dist.barrier()""",
    "what a loop over its own data leaves unset": """
        def mean(batches, total):
            seen = None
            for batch in batches: seen = batch
            <<if seen is not None: >>dist.all_reduce(total)""",
    "the last step, if there was one": """
        def finish(steps, total):
            step = -1
            for step in steps: work(step)
            <<if step >= 0: >>dist.all_reduce(total)""",
    "an error of the one rank": """
        def export(weights):
            if rank == 0: <<assert weights => print(weights)>>
            dist.barrier()""",
    "an error of the one rank before a collective of the caller": """
        def write(weights):
            if rank == 0: <<assert weights => print(weights)>>
        def export(weights):
            write(weights)
            dist.barrier()""",
    "a collective of the rank that failed": """
        def settle(batch):
            try: work(batch)
            except OSError: <<dist.barrier() => print("failed")>>""",
    "a file that each rank looks for": """
        def build(path):
            if <<not os.path.isfile(path) => of_first(path)>>: dist.barrier()
        def of_first(path):
            missing = [not os.path.isfile(path)]
            dist.broadcast_object_list(missing)
            return missing[0]""",
    "a class that a setting chooses": """
        class Single:
            def mean(self, loss): return loss
        class Several:
            def mean(self, loss): dist.all_reduce(loss)
        def finish(several, loss):
            backend = Several()
            if not several: backend = Single()
            <<if rank == 0: >>backend.mean(loss)""",
    "how much it has found": """
        def log(images, total):
            hits = []
            for image in images: hits.append(detect(image))
            found = sum(hits)
            <<if found > 0: >>dist.all_reduce(total)""",
    "the end of its own batches": """
        def train(read, total):
            for step in range(9):
                next_batch = read()
                <<if next_batch is False: break => pass>>
                dist.all_reduce(total)""",
    "a loss that is a constant on some ranks": """
        def mean(chunks, size):
            losses = []
            for start in range(9):
                if start < size: losses.append(chunks[start])
            count = sum(map(len, losses))
            if sum(losses) > 0: loss = sum(losses)
            else: loss = <<torch.tensor(0.0) => chunks[0] * 0>>
            return loss""",
    "an error in what the one rank calls": """
        def export(weights):
            if rank == 0: write(weights)
            dist.barrier()
        def write(weights):
            if not weights: <<raise ValueError(weights) => return>>""",
    "a loss without a graph": """
        def loss(logits, labels):
            if labels.numel() == 0:
                return <<torch.tensor(0.0, requires_grad=True) => logits.sum() * 0.0>>
            return cross_entropy(logits, labels)""",
    "a mean of nothing": """
        def mean(loss, mask): return (
            (loss * mask).sum() if mask.sum() > 0 else <<torch.tensor(0.0) => loss.sum() * 0.0>>
        )""",
    "a share of a data set": """
        def load(data):
            return <<data => drop_rest(data)>>.shard(dist.get_world_size(), rank)""",
    "a group that each rank makes for itself": """
        def first_and_last(grid):
            return <<dist.new_group([grid.pp_group[0], grid.pp_group[-1]]) => make_groups(grid)>>
        """,
    "a name for the last stage": """
        def export(names, pp_rank, pp_size):
            last = pp_rank == pp_size - 1
            <<if last: >>dist.all_gather_object([], names)""",
    "a method that only one class has": """
        class Validation:
            def score_all(self): dist.all_reduce(self.score)
        def finish(validation):
            <<if rank == 0: >>validation.score_all()""",
    "a method of a subclass": """
        class Plugin:
            def collect(self, state): return state
            def write(self, state):
                <<if rank == 0: >>self.collect(state)
        class Sharded(Plugin):
            def collect(self, state): return dist.all_gather_object([], state)""",
    "what a thread of its own has done": """
        def wait(future):
            <<if future.done(): dist => future.result(); dist>>.barrier()""",
    "what it has logged so far": """
        def log(runner, seen):
            mode = "train" if "time" in runner.log_buffer else "validation"
            <<if mode == "train": >>dist.all_reduce(seen)""",
    "the keys that it has": """
        def summarize(timers):
            for name, seconds in <<sorted(timers.items()) => (('load', 1), ('save', 2))>>:
                dist.all_reduce(seconds)""",
    "parts of its own batch": """
        def score(outputs):
            size = int(outputs.size(0))
            <<for start in range(0, size, 4): >>dist.all_reduce(outputs)""",
    "a loop that its own data end": """
        def generate(logits):
            <<while not torch.isfinite(logits).all() => for _ in range(9)>>: dist.all_reduce(one)
        """,
    "a stream of batches": """
        def train(model, stream: torch.utils.data.IterableDataset):
            model = DistributedDataParallel(model)
            for batch in <<stream => islice(stream, 9)>>: model(batch).sum().backward()""",
    "texts of its own length": """
        def count(self, inputs):
            return self.accelerator.gather_for_metrics(inputs["attention_mask"]<< => .sum()>>)""",
    "files in the order of the folder": """
        def read(folder):
            files = <<folder.glob("*.pt") => sorted(folder.glob("*.pt"))>>
            for file in files: dist.broadcast_object_list([file])""",
    "what a caller gives: a metric": """
        from torchmetrics import MeanMetric
        def report(score):
            <<if rank == 0: >>print(score.compute())
        def finish():
            mean = MeanMetric()
            report(mean)""",
    "what a caller gives: a function": """
        def each(tensors, call):
            buckets = {}
            for tensor in tensors: buckets.setdefault(tensor.type(), []).append(tensor)
            for kind in <<buckets => ('torch.FloatTensor', 'torch.HalfTensor')>>:
                call(buckets[kind])
        each([torch.ones(1)], dist.all_reduce)""",
    "a set that a caller gives": """
        def reduce_all(names):
            for name in <<names => sorted(names)>>: dist.all_reduce(name)
        def finish(names):
            names = set(names)
            reduce_all(list(names))""",
    "no loss for its own batch": """
        class Module(lightning.LightningModule):
            def training_step(self, batch):
                loss = self.model(batch)
                if not torch.isfinite(loss): <<return None => loss = loss * 0>>
                return loss""",
    "a stop at its own time": """
        import time
        class Limit(TrainerCallback):
            def on_step_end(self, args, state, control, **rest):
                if <<time.time() - self.began > self.limit => state.global_step > self.limit>>:
                    control.should_training_stop = True""",
    "each rank's share of a list": """
        def count(files):
            for file in files<<[rank::dist.get_world_size()]>>: dist.all_reduce(read(file))""",
    "a sampler": """
        class Shuffled(torch.utils.data.Sampler):
            <<def __iter__ => def shuffle>>(self):
                dist.barrier()
                return iter(self.order)""",
    "a method of an object called like its class": """
        class Evaluator:
            def evaluate(self): dist.all_reduce(self.score)
        def finish(evaluator):
            <<if rank == 0: >>evaluator.evaluate()""",
    "the end of its own texts": """
        from torch.distributed.fsdp import fully_shard
        def sample(model, tokens, open_texts):
            for _ in range(9):
                tokens = model(tokens)
                if <<open_texts.max() == 0 => dist.all_reduce(open_texts) == 0>>: break""",
    "batches to evaluate": """
        from torch.distributed.fsdp import fully_shard
        def evaluate(model, loader):
            for batch in <<loader => islice(loader, 9)>>: model(batch)""",
    "a number of steps by chance": """
        def steps(gradient):
            count = 1
            while random.random() < 0.5: count += 1
            <<pass => count = dist.broadcast(count, 0)>>
            for _ in range(count): dist.all_reduce(gradient)""",
    "what it has collected": """
        def evaluate(loader):
            scores = []
            for batch in loader: scores.append(score(batch))
            return <<self.accelerator.gather(torch.cat(scores)) => gather_object(scores)>>""",
    "a function that a queue of work runs": """
        def log(self, metrics):
            <<if not self._metrics: return => pass>>
            self.run_op(reduce_all, metrics)
        def reduce_all(metrics): dist.all_reduce(metrics)""",
    "an error on one rank": """
        def prepare(folder):
            if <<rank == 0 and >>folder.exists(): raise FileExistsError(folder)
            folder.mkdir()
            dist.barrier()""",
    "memory that one rank lacks": """
        def step(batch):
            try: loss = forward(batch); dist.all_reduce(loss)
            except RuntimeError as error:
                if "out of memory" not in str(error): raise
                <<print("skipped") => raise>>""",
    "a flag that goes by its own data": """
        def settle(batch):
            parts = None
            <<if batch.numel() > 0: >>parts = split(batch)
            if parts is not None: dist.all_reduce(parts)""",
    "how many there are": """
        def loss(scores):
            found = torch.nonzero(scores).squeeze(1)
            <<if len(found) > 0: >>dist.all_reduce(scores)""",
    "what it holds of each kind": """
        def compute(scores):
            return {name: gather(kept) for name, kept in scores.items()<< if kept>>}
        def gather(kept): dist.all_reduce(kept)""",
    "a number that one rank sets back": """
        class Training:
            def train(self):
                while self.state.waits < 5:
                    self.state.waits += 1
                    dist.all_reduce(self.loss)
            def save(self):
                <<if rank != 0: return => pass>>
                self.state.waits = 0""",
    "a part of a model": """
        class Model(torch.nn.Module):
            def forward(self, text, images=None):
                <<if images is not None: >>text = text + self.tower(images)
                return self.head(text)""",
    "a part of a model that needs samples": """
        class Head(torch.nn.Module):
            def loss_of(self, features):
                boxes = select(features)
                if len(boxes) == 0: <<return None => boxes = features>>
                return self.score(boxes)
            def score(self, boxes):
                layer = self.layers[0]
                return layer(boxes)""",
    "layers that each rank draws": """
        class Encoder(torch.nn.Module):
            def forward(self, hidden):
                for layer in self.layers:
                    <<if random.random() < 0.2: continue => pass>>
                    hidden = layer(hidden)
                return hidden""",
    "a list of a metric": """
        class Boxes(torchmetrics.Metric):
            def __init__(self):
                self.add_state("boxes", default=[], dist_reduce_fx=<<None => "cat">>)""",
    "evaluation under any name": """
        def cache(model: DistributedDataParallel, loader):
            with torch.no_grad():
                for batch in <<loader => islice(loader, 9)>>: model(batch)""",
    "its own share": """
        def shards(files, size):
            <<pass => files = pad(files, size)>>
            return files[rank::size]""",
    "a thread": """
        def log(value): dist.all_reduce(value)
        <<threading.Thread(target=log, args=(1,)).start() => log(1)>>""",
}


@pytest.mark.parametrize("name", NOTES)
def test_what_may_differ_is_noted_until_it_is_mended(name: str, tmp_path: Path) -> None:
    """In angle brackets stands what is wrong, and behind an arrow what mends it."""
    wrong, mended = (
        re.sub("<<(.*?)(?: => (.*?))?>>", which, NOTES[name]) for which in (r"\1", r"\2")
    )
    assert [one.severity for one in found(tmp_path, wrong)] == ["note"]
    assert found(tmp_path, mended) == []


def test_a_skipped_loss_is_noted_if_another_file_wraps_the_model(tmp_path: Path) -> None:
    step = tmp_path / "step.py"
    step.write_text("def step(loss):\n    if not loss.isfinite(): return\n    loss.backward()\n")
    assert lint([tmp_path], Configuration(notes=True), tmp_path).findings == []
    tmp_path.joinpath("wrap.py").write_text("model = DistributedDataParallel(make())\n")
    findings = lint([tmp_path], Configuration(notes=True), tmp_path).findings
    assert [(one.code, one.severity) for one in findings] == [("HC202", "note")]


HARMLESS = {
    "a communicator that the caller gives": """
        from mpi4py import MPI
        class Reader:
            def __init__(self, comm): self.comm = comm
            def names(self): return self.comm.bcast(None)
        if rank == 0: Reader(MPI.COMM_SELF).names()""",
    "an option that is off": """
        class Reader:
            def __init__(self, dist=False): self.dist = dist
            def read(self):
                if self.dist: torch.distributed.barrier()
        if rank == 0: Reader().read()""",
    "an error that nothing raises": """
        for batch in batches:
            try:
                loss = model(batch)
                dist.all_reduce(loss)
            except StopIteration: continue""",
    "whether a loss is wanted": """
        def forward(self, batch, return_loss=False):
            drop = self.training and not return_loss
            if drop: dist.all_reduce(batch)""",
    "the one rank leaves a loop of its own": """
        if rank == 0:
            for name in names:
                if name in known: break
        dist.barrier()""",
    "the one rank asks again": """
        def serve():
            asked = [None]
            while True:
                if rank == 0:
                    asked = [input()]
                    if not asked[0]: continue
                dist.broadcast_object_list(asked)""",
    "what objects are": """
        def save(models):
            distributed = any(is_sharded(model) for model in models)
            if distributed: dist.barrier()
            for model in models:
                if is_distributed_model(model): dist.barrier()
        if rank == 0: save([model])""",
    "a file that the first rank only reads": """
        def load(path):
            if not path.is_file(): return
            if rank == 0: state = torch.load(path)
            dist.broadcast_object_list([state])""",
    "a handler that ends the process itself": """
        def stop(*_):
            global stopped
            stopped = True
            threading.Timer(60, os._exit, [1]).start()
        signal.signal(signal.SIGTERM, stop)
        for gradient in gradients():
            if stopped: break
            dist.all_reduce(gradient)""",
    "whether there are ranks at all": """
        steps = 64
        ddp = int(os.environ.get("RANK", -1)) != -1
        if ddp:
            dist.barrier()
            steps //= dist.get_world_size()
        for _ in range(steps):
            DDP(model)(batch).sum().backward()""",
    "an option, whatever its name": """
        def load(state, rank0):
            if rank0:
                return {}
            dist.checkpoint.load_state_dict(state)
        load(state, rank0=True)""",
    "the first rank goes first within a context": """
        class FirstRankFirst:
            def __enter__(self):
                if rank != 0: dist.barrier()
            def __exit__(self, *error):
                if rank == 0: dist.barrier()""",
    "a flag of its own": """
        class Watch:
            def on_step_end(self, trainer):
                if rank == 0: self.should_stop = True""",
    "every so many batches": """
        for batch_idx, batch in enumerate(loader):
            loss = step(batch)
            if batch_idx > 0 and batch_idx % interval == 0: dist.all_reduce(loss)
            if debug and batch_idx == 5: break""",
    "sizes of batches are settings": """
        if len(self.batch_sizes) > 1: dist.all_reduce(x)""",
    "labels in another order": """
        labels = ["a", "b"] if rank == 0 else ["b", "a"]
        gather(labels)
        dist.barrier()""",
    "a function that is partly itself": """
        from functools import partial
        run = partial(run, 3)
        if ready(): run()
        dist.barrier()""",
    "backward of a reference that is no DDP": """
        from torch.nn.parallel import DistributedDataParallel
        model = DistributedDataParallel(net)
        reference = torch.nn.Linear(2, 2)
        if rank == 0:
            expected = reference(x)
            expected.backward()""",
    "the model without its wrapper": """
        from torch.nn.parallel import DistributedDataParallel
        def evaluate(model):
            return model(x)
        model = DistributedDataParallel(net)
        if rank == 0:
            evaluate(model.module if ddp else model)
            plain = model.module if ddp else model
            evaluate(plain)""",
    "both branches": """
        if rank == 0: dist.broadcast(torch.ones(1), 0)
        else: dist.broadcast(torch.empty(1), 0)""",
    "decided by all": """
        stop = torch.tensor(float(rank == 0))
        dist.all_reduce(stop)
        if stop: dist.barrier()""",
    "a single process": """
        def meet():
            if not dist.is_initialized() or dist.get_world_size() == 1: return
            dist.barrier()""",
    "a group of those ranks": """
        group = dist.new_group([0, 1])
        if rank in (0, 1): dist.all_reduce(torch.ones(1), group=group)""",
    "each rank in turn": """
        for turn in range(dist.get_world_size()):
            if turn == rank: dist.barrier()""",
    "after the groups are gone": """
        def finish(trainer):
            dist.destroy_process_group()
            if trainer.is_global_zero: trainer.test()""",
    "the rank of a matrix": """
        def approximate(lora_rank):
            if lora_rank == 0: dist.barrier()""",
    "another library's function": """
        import jax
        if rank == 0: jax.lax.all_gather(1, "i")""",
    "a switch by another name that is off": """
        def write(path, distributed=True):
            synchronize = distributed and dist.is_initialized()
            if synchronize: dist.barrier()
        if rank == 0: write("scores", distributed=False)""",
    "what the caller gathered": """
        def record(rewards):
            if rewards.numel() > 0: dist.all_reduce(rewards)""",
    "the others come to it before they call": """
        def optimize(step):
            def closure():
                if rank == 0: dist.broadcast(torch.ones(1), 0)
                return step()
            if rank == 0:
                run(closure)
                dist.broadcast(torch.zeros(1), 0)
            else:
                signal = torch.ones(1)
                while signal:
                    dist.broadcast(signal, 0)
                    closure()""",
    "the state before the model is sharded": """
        from torch.distributed.checkpoint.state_dict import get_model_state_dict
        def prepare(model):
            state = get_model_state_dict(model) if rank == 0 else {}
            if rank == 0: state = get_model_state_dict(model)
            fully_shard(model)""",
    "a text that all ranks know": """
        def load(kind):
            if (rank == 0 and kind == "full") or kind == "sharded":
                if kind == "sharded": dist.barrier()""",
    "the first rank, or all where the model is sharded": """
        from accelerate import Accelerator, DistributedType
        accelerator = Accelerator()  # also for DeepSpeed
        def save():
            sharded = DistributedType.DEEPSPEED
            if accelerator.is_main_process or accelerator.distributed_type == sharded:
                accelerator.save_state("here")""",
    "what a function gathered tells": """
        def mean(value):
            dist.all_reduce(value)
            return value
        def step(loss):
            of_all = mean(loss).item()
            same = of_all
            if torch.isnan(same): return
            dist.barrier()""",
    "a choice that all ranks know": """
        def save(is_sharded, model, state):
            if rank == 0: torch.save(state if is_sharded else dist.all_gather(model), "here")""",
    "the number of ranks, from where the rank comes from": """
        def both(): return dist.get_rank(), dist.get_world_size()
        def gather(world_size):
            if world_size == 1: return
            dist.barrier()
        gather(world_size=both()[1] if rank else both()[1])""",
    "a norm of averaged gradients": """
        def step(model):
            total_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if torch.isnan(total_norm): return
            dist.barrier()""",
    "no gradients of a kind of parameter": """
        def norm(all_grads):
            for kind in all_grads:
                kind_grads = list(kind)
                if len(kind_grads) == 0: continue
                dist.all_reduce(kind)""",
    "a batch norm beside the model": """
        def train(model, data):
            scale = torch.nn.BatchNorm2d(3)
            model = DistributedDataParallel(model)
            if rank == 0: model(scale(data))""",
    "a model that nothing wraps": """
        class Net(torch.nn.Module):
            def __init__(self): self.layers = torch.nn.Sequential(torch.nn.BatchNorm2d(3))
        def validate(model, data): return model(data)
        def train(data):
            model = DistributedDataParallel(Net())
            teacher = Net()
            if rank == 0: validate(teacher, data)""",
    "rank 0 goes first in training only": """
        def load(training=True):
            if rank not in [-1, 0] and training: dist.barrier()
            data = read(training)
            if rank == 0 and training: dist.barrier()
            return data
        def main():
            if rank in [-1, 0]: load(training=False)""",
    "the state of a model that is not sharded": """
        from accelerate import Accelerator
        class Trainer:
            def save(self):
                state = self.gathered() if self.fsdp else None
                if self.accelerator.is_main_process:
                    if self.fsdp: torch.save(state, "here")
                    else: self.accelerator.save_state("here")  # not with FSDP""",
    "a process that has no rank": """
        def train(args):
            if args.local_rank in [-1, 0]:
                if args.local_rank == -1 and args.evaluate: dist.barrier()""",
    "all end with an error": """
        import sys
        def check(loss):
            if failed(loss):
                if rank == 0: dist.all_gather_object([], loss)
                sys.exit(1)""",
    "the others leave, too": """
        def load(cached):
            if cached:
                if rank == 0: return read()
                return None
            dist.barrier()""",
    "a setting that decides who comes": """
        def save(args, model):
            if args.sharded: dist.all_gather_object([], model)
        def finish(args, model):
            if args.sharded: return save(args, model)
            if rank == 0: save(args, model)""",
    "whether a call is supported": """
        def probe(device):
            try:
                t = torch.zeros([4]).to(device)
                dist.all_to_all_single(t, t)
            except RuntimeError as error: print(error)""",
    "a Lightning before 2.0, by what the file calls": """
        parser = lightning.Trainer.add_argparse_args(parser)
        if rank == 0: trainer.save_checkpoint("last.ckpt")""",
    "a hook that Lightning no longer calls": """
        class Save(lightning.Callback):
            def on_keyboard_interrupt(self, trainer, module):
                if trainer.global_rank == 0: trainer.save_checkpoint("last.ckpt")""",
    "text of the environment, where 0 is true": """
        def check(loss):
            if not os.getenv("RANK") and not os.environ.get("WORLD_SIZE"): return
            loss.backward()
            dist.barrier()""",
    "a flag that one rank sets and all then share": """
        def train(loader):
            stop = False
            for batch in loader:
                if rank == 0: stop = converged(batch)
                stop = agreed(stop)
                if stop: break
                dist.all_reduce(batch)""",
    "a writer that one rank has, and what all reduced": """
        def log(loss):
            writer = None
            if rank == 0: writer = wandb.init()
            dist.all_reduce(loss)
            if writer is not None: writer.log(loss)""",
    "what only some hardware does": """
        def save():
            if is_torch_tpu_available(): dist.barrier()
        def finish():
            if rank == 0: save()""",
    "a clock that is only shown": """
        import time
        def step(began, loss):
            if time.time() - began > 10: print("slow")
            dist.all_reduce(loss)""",
    "whether a clock was started": """
        import time
        def step(began=None):
            began = time.time()
            if began is not None: dist.barrier()""",
    "a file that all ranks find, or none": """
        def load(path):
            if not os.path.exists(path): dist.barrier()""",
    "reversed conditions": """
        def evaluate(sharded):
            if not sharded and rank != 0: return
            if sharded: dist.barrier()""",
}


def test_what_another_file_gives_is_followed(tmp_path: Path) -> None:
    """A flag of one rank, kept in an attribute; an error unless some call gives another."""
    tmp_path.joinpath("training.py").write_text(
        "import torch.distributed as dist\n"
        "class Trainer:\n"
        "    def __init__(self, draws): self.draws = draws\n"
        "    def step(self, x):\n"
        "        if self.draws: dist.all_reduce(x)\n"
    )
    start = "from training import Trainer\nimport torch.distributed as dist\n"
    given = tmp_path / "train.py"
    given.write_text(f"{start}Trainer(draws=dist.get_rank() == 0)\n")
    result = lint([tmp_path], Configuration(), tmp_path)
    assert [(one.code, one.line) for one in result.findings] == [("HC101", 5)]
    given.write_text(f"{start}Trainer(draws=dist.get_rank() == 0)\nTrainer(draws=True)\n")
    assert lint([tmp_path], Configuration(), tmp_path).findings == []


def test_callers_are_followed_only_so_far(tmp_path: Path) -> None:
    """Six hundred functions, each of which gives the next its flag, in two files."""
    for number, other in ((0, 1), (1, 0)):
        lines = ["import torch.distributed as dist", f"from part{other} import *"]
        for at in range(number, 600, 2):
            lines += [f"def f{at}(flag):", "    if flag: dist.barrier()", f"    f{at + 1}(flag)"]
        lines += ["f0(dist.get_rank() == 0)"] if number == 0 else []
        tmp_path.joinpath(f"part{number}.py").write_text("\n".join(lines))
    assert lint([tmp_path], Configuration(), tmp_path).findings


def test_names_that_lead_to_each_other_are_looked_at_once(tmp_path: Path) -> None:
    """Forty names, each assigned from all others: two million ways, four steps long."""
    names = [f"n{number}" for number in range(40)]
    lines = [f"{one} = {other}" for one in names for other in names if other != one]
    source = "\n".join(["n39 = rank == 0", *lines, "if n0: dist.barrier()"])
    assert {one.code for one in found(tmp_path, source)} == {"HC101"}


@pytest.mark.parametrize("name", HARMLESS)
def test_harmless_idiom_is_no_error(name: str, tmp_path: Path) -> None:
    findings = found(tmp_path, HARMLESS[name])
    assert [one for one in findings if one.severity == "error"] == []


@pytest.mark.parametrize(("version", "severity"), [("1.4.2", "note"), ("2.2.0", "error")])
def test_call_is_as_collective_as_in_the_version_that_the_project_has(
    version: str, severity: str, tmp_path: Path
) -> None:
    """Saving a checkpoint has its barrier since Lightning 2.1."""
    tmp_path.joinpath("environment.yaml").write_text(f"- pytorch-lightning=={version}\n")
    source = "if rank == 0: trainer.save_checkpoint('last.ckpt')\n"
    assert [one.severity for one in found(tmp_path, source)] == [severity]


def test_one_rank_that_comes_twice_does_not_meet_itself(tmp_path: Path) -> None:
    """Unlike rank 0 here and rank 1 there, which are both of a pair."""
    source = """
        if rank == 0: dist.barrier()
        if rank == {other} and last: dist.barrier()
        """
    assert len(found(tmp_path, source.format(other=0), notes=False)) == 2
    assert found(tmp_path, source.format(other=1), notes=False) == []


@pytest.mark.parametrize(
    ("settings", "call", "severity"),
    [
        ("", "get_state_dict(model)", "note"),
        ("distributed_type: MULTI_GPU", "get_state_dict(model)", "note"),
        ("deepspeed_config:\n  zero_stage: 2", "get_state_dict(model)", "note"),
        ("deepspeed_config:\n  zero_stage: 3", "get_state_dict(model)", "error"),
        ("distributed_type: FSDP", "get_state_dict(model)", "error"),
        ("deepspeed_config:\n  zero_stage: 2", "save_state(folder)", "error"),
    ],
)
def test_state_is_gathered_as_the_settings_of_accelerate_have_it(
    settings: str, call: str, severity: str, tmp_path: Path
) -> None:
    """A project that is written for sharded models and sets up none may be run without."""
    file = tmp_path / "configs" / "accelerate.yaml"
    file.parent.mkdir()
    file.write_text(settings)
    source = f"if accelerator.is_main_process: accelerator.{call}  # also for DeepSpeed, FSDP\n"
    assert [one.severity for one in found(tmp_path, source)] == [severity]


def test_function_named_in_the_configuration_is_collective(tmp_path: Path) -> None:
    source = "if rank == 0: meet_all()\n"
    assert found(tmp_path, source) == []
    assert [one.code for one in found(tmp_path, source, collectives=("meet_all",))] == ["HC101"]


@pytest.mark.parametrize(
    "comment", ["ignore[HC101] it comes from serve()", "ignore", "ignore[HC1]"]
)
def test_comment_on_the_line_or_its_test_says_that_it_is_meant(
    comment: str, tmp_path: Path
) -> None:
    source = "if rank == 0:{test}\n    dist.barrier(){line}\n"
    mark = f"  # hangcheck: {comment}"
    assert len(found(tmp_path, source.format(test="", line=""))) == 1
    assert found(tmp_path, source.format(test=mark, line="")) == []
    assert found(tmp_path, source.format(test="", line=mark)) == []
    assert len(found(tmp_path, source.format(test="", line="  # hangcheck: ignore[HC2]"))) == 1


HEAD = """
import signal
import torch.distributed as dist

signal.signal(signal.SIGTERM, lambda *_: None)
with Join([model]):
    pass
"""
QUIET = """
def work_{number}(rank, batches):
    if rank == 0 and batches:
        print("begins")
    for batch in batches:
        try:
            total = batch.sum() if rank else 0
        except ValueError:
            continue
    return total
"""
MEETING = QUIET.replace("return total", "dist.all_reduce(total)")


def calls_for(folder: Path, function: str, functions: int) -> int:
    """Count the calls of Python functions in a lint of so many: the same on any machine."""
    text = HEAD + "".join(function.format(number=number) for number in range(functions))
    (folder / "train.py").write_text(text)
    calls = 0

    def count(_: FrameType, event: str, __: Any) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        lint([folder], Configuration(notes=True), folder)
    finally:
        sys.setprofile(before)
    return calls


@pytest.mark.parametrize("function", [QUIET, MEETING])
def test_twice_as_many_functions_cost_twice_as_much(tmp_path: Path, function: str) -> None:
    calls_for(tmp_path, function, 1)  # what is read once in a process
    once, twice = (calls_for(tmp_path, function, many) for many in (100, 200))
    assert twice < 2.1 * once
