"""Heat in strips, edges swapped in batches of messages; the strip of rank 2 settles first."""

import one_gpu  # noqa: F401 - sets the environment
import torch
import torch.distributed as dist
from onset import mark_onset

ROWS, COLUMNS, TOLERANCE = 64, 64, 1e-3


def exchange(field, rank, world):
    """Swap edge rows with the strips above and below (periodic)."""
    above, below = (rank - 1) % world, (rank + 1) % world
    top, bottom = torch.empty_like(field[0]), torch.empty_like(field[0])
    swaps = [
        dist.P2POp(dist.isend, field[1].contiguous(), above),
        dist.P2POp(dist.isend, field[-2].contiguous(), below),
        dist.P2POp(dist.irecv, bottom, below),
        dist.P2POp(dist.irecv, top, above),
    ]
    for work in dist.batch_isend_irecv(swaps):
        work.wait()
    field[0], field[-1] = top, bottom


def relax(field):
    inner = field[1:-1, 1:-1]
    mean = (field[:-2, 1:-1] + field[2:, 1:-1] + field[1:-1, :-2] + field[1:-1, 2:]) / 4
    change = (mean - inner).abs().max()
    inner.copy_(mean)
    return change


def main():
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    field = torch.zeros(ROWS + 2, COLUMNS, device="cuda")
    if rank < 2:
        field[20:40, 20:40] = 100.0
    dist.all_reduce(torch.zeros(1, device="cuda"))
    converged = False
    for sweep in range(2000):
        if not converged:
            exchange(field, rank, world)
            change = relax(field).item()
            # the strip far from the source settles first: its halos hardly change any more
            converged = rank == world - 1 and sweep > 15 and change < 1.0
            if converged:
                mark_onset()
        if sweep % 5 == 0:
            print(f"rank {rank} sweep {sweep} change {change:.5f}", flush=True)
        if sweep % 25 == 24:
            residual = torch.tensor([change], device="cuda")
            dist.all_reduce(residual, op=dist.ReduceOp.MAX)
            if residual.item() < TOLERANCE:
                break
    print(f"rank {rank} done after {sweep} sweeps", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
