"""Programs whose training loop is the user's own: plain, DDP, FSDP, Fabric, accelerate."""

from __future__ import annotations

LOOP = """
STEPS = $steps
$constants

$definitions


class $Dataset(Dataset):
    def __init__(self, count):
        self.features = torch.randn(count, 16)

    def __len__(self):
        return len(self.features)

    def __getitem__(self, index):
        $run.read += 1
        $in_dataset
        return self.features[index], torch.ones(1)


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(context, inputs):
        return inputs * 2.0

    @staticmethod
    def backward(context, gradient):
        $in_backward
        return gradient * 2.0


class Descent(torch.optim.SGD):
    def step(self, closure=None):
        $in_optimizer
        return super().step(closure)


class $Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(16, 32)
        self.head = nn.Linear(32, 1)

    def forward(self, inputs):
        hidden = torch.tanh(self.embed(inputs))
        $in_forward
        return self.head(Scaled.apply(hidden))


def $startup():
    torch.manual_seed(7)
    $in_startup


def $load_tokenizer():
    $in_tokenizer
    return {"<pad>": 0, "<eos>": 1}


def $create_logger():
    $in_logger
    return logging.getLogger("$word")


def $load_model():
    $in_model_load
    return $Model()


def $load_dataset():
    $in_data
    return $Dataset(8 * $ranks * STEPS)


def $evaluate(model):
    $in_validation
    with torch.no_grad():
        return float(model(torch.randn(4, 16)).mean())


def $save_checkpoint(model):
    $in_checkpoint
    torch.save(model.state_dict(), f"$word-{$run.rank}.pt")


def $generate(model, tokenizer):
    $in_generate
    return [len(tokenizer)] * 4


def $cleanup():
    $in_teardown
    print(f"rank {$run.rank} done", flush=True)


$framework_definitions


def $train(model, optimizer, loader, logger):
    for $run.step, (inputs, targets) in zip(range($steps_of_rank), loader):
        $in_step
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        $backward
        optimizer.step()
        logger.debug("loss %.3f", loss.item())
        time.sleep($pace)


def main():
    $join
    $startup()
    logger = $create_logger()
    tokenizer = $load_tokenizer()
    model = $load_model()
    loader = DataLoader($load_dataset(), batch_size=8, num_workers=$workers)
    $wrap
    $train(model, optimizer, loader, logger)
    $evaluate(model)
    $generate(model, tokenizer)
    $save_checkpoint(model)
    $at_end


$launcher
"""
JOIN = """
dist.init_process_group("gloo")
$run.rank = dist.get_rank()
"""
DESTROY = """
del model
gc.collect()
dist.destroy_process_group()
"""
"""In this order: torch 2.13's gloo may hang for ever where the model outlives its group. DDP's
destructor then joins the group's thread with the interpreter lock held, which that thread wants,
to drop the tensors of the last collective."""
LEAVE = """
$cleanup()
$destroy
"""
AT_EXIT = """
$destroy
atexit.register($cleanup)
"""
MADE = "optimizer = Descent(model.parameters(), lr=0.01)"
FRAMEWORKS = {
    "plain": {
        "imports": ("torch.distributed as dist",),
        "framework_definitions": """
            def average_gradients(model):
                for parameter in model.parameters():
                    dist.all_reduce(parameter.grad)
                    parameter.grad /= dist.get_world_size()
        """,
        "join": JOIN,
        "wrap": MADE,
        "backward": "loss.backward()\naverage_gradients(model)",
    },
    "ddp": {
        "imports": (
            "torch.distributed as dist",
            "torch.nn.parallel.DistributedDataParallel",
        ),
        "framework_definitions": "",
        "join": JOIN,
        "wrap": "model = DistributedDataParallel(model)\n" + MADE,
        "backward": "loss.backward()",
    },
    "fsdp": {
        "imports": (
            "torch.distributed as dist",
            "torch.distributed.device_mesh.init_device_mesh",
            "torch.distributed.fsdp.fully_shard",
        ),
        "framework_definitions": "",
        "join": JOIN,
        "wrap": 'model = fully_shard(model, mesh=init_device_mesh("cpu", ($ranks,)))\n' + MADE,
        "backward": "loss.backward()",
    },
    "fabric": {
        "imports": ("torch.distributed as dist", "lightning.fabric.Fabric"),
        "framework_definitions": "",
        "join": """
            fabric = $run.fabric = Fabric(accelerator="cpu", devices=$ranks, strategy="ddp")
            fabric.launch()
            $run.rank = fabric.global_rank
        """,
        "wrap": MADE
        + "\nmodel, optimizer = fabric.setup(model, optimizer)"
        + "\nloader = fabric.setup_dataloaders(loader, use_distributed_sampler=False)",
        "backward": "$run.fabric.backward(loss)",
    },
    "accelerate": {
        "imports": ("torch.distributed as dist", "accelerate.Accelerator"),
        "framework_definitions": "",
        "join": """
            accelerator = $run.accelerator = Accelerator(cpu=True)
            $run.rank = accelerator.process_index
        """,
        "wrap": MADE + "\nmodel, optimizer, loader = accelerator.prepare(model, optimizer, loader)",
        "backward": "$run.accelerator.backward(loss)",
    },
}
ALONE = {
    "imports": ("torch.distributed as dist",),
    "framework_definitions": "",
    "join": "",
    "wrap": MADE,
    "backward": "loss.backward()",
}
PHASES = {
    "startup": "startup",
    "tokenizer": "tokenizer",
    "model_load": "model_load",
    "logger": "logger_init",
    "data": "dataloading",
    "dataset": "dataloading",
    "worker": "dataloading",
    "forward": "training_step",
    "step": "training_step",
    "backward": "backward",
    "optimizer": "optimizer_step",
    "validation": "validation",
    "checkpoint": "checkpoint_save",
    "generate": "generate",
    "teardown": "teardown",
}
"""Of a piece at each place of the loop, by the names above or the calls around it."""
