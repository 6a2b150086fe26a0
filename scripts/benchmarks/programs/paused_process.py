"""A process for dump_pause that records its own pauses: a tight clock loop, or a Lightning fit.

It says ``ready``, works until SIGUSR1, and then prints each pause that was longer than 0.1 ms as
JSON: when it began, on the monotonic clock, and how long it was; both in nanoseconds.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time

WORTH_NOTING_NS = 100_000
SETTLING_STEPS = 200


class Pauses:
    """The time between one call of `passed` and the next, where it was long."""

    def __init__(self) -> None:
        self.over = False
        self._noted: list[tuple[int, int]] = []
        self._last = time.monotonic_ns()
        signal.signal(signal.SIGUSR1, self._end)

    def passed(self) -> None:
        """Say that the loop came round."""
        now = time.monotonic_ns()
        if now - self._last > WORTH_NOTING_NS:
            self._noted.append((self._last, now - self._last))
        self._last = now

    def tell(self) -> None:
        """Print all of them."""
        print(json.dumps(self._noted), flush=True)

    def _end(self, *_: object) -> None:
        self.over = True


def run_clock(pauses: Pauses, threads: int) -> None:
    """Read the clock without a rest, beside so many threads that wait."""
    over = threading.Event()
    beside = [threading.Thread(target=over.wait) for _ in range(threads)]
    for thread in beside:
        thread.start()
    print("ready", flush=True)
    while not pauses.over:
        pauses.passed()
    over.set()


def run_fit(pauses: Pauses) -> None:
    """Fit a tiny model; a step is a pass of the loop."""
    import torch
    from pytorch_lightning import Callback, LightningModule, Trainer
    from torch.utils.data import DataLoader, TensorDataset

    class Model(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(8, 1)

        def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
            return self.layer(batch[0]).mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.0)

    class Steps(Callback):
        def on_train_batch_end(self, trainer: Trainer, *_: object) -> None:
            pauses.passed()
            if trainer.global_step == SETTLING_STEPS:
                print("ready", flush=True)
            trainer.should_stop = pauses.over

    torch.set_num_threads(1)
    trainer = Trainer(
        max_epochs=-1,
        accelerator="cpu",
        logger=False,
        callbacks=[Steps()],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Model(), DataLoader(TensorDataset(torch.zeros(100_000, 8)), batch_size=4))


def main() -> None:
    """Work as the arguments say: ``clock THREADS`` or ``fit``."""
    pauses = Pauses()
    if sys.argv[1] == "clock":
        run_clock(pauses, int(sys.argv[2]))
    else:
        run_fit(pauses)
    pauses.tell()


if __name__ == "__main__":
    main()
