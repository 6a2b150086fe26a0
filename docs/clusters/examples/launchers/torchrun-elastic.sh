#!/bin/bash
# An elastic job: two to four nodes, and after a hang torchrun starts the ranks again, three times.
# Start this on each node, with one name of the run for all: torchrun-elastic.sh HEAD_NODE RUN
# All keep it in runs/RUN, on storage that they share.
set -euo pipefail

head=${1:?"usage: torchrun-elastic.sh HEAD_NODE RUN"}
run=${2:?"usage: torchrun-elastic.sh HEAD_NODE RUN"}

exec hangcheck run --on-hang restart --run-dir "runs/$run" -- \
  torchrun --nnodes=2:4 --nproc-per-node=8 --max-restarts=3 \
    --rdzv-backend=c10d --rdzv-endpoint="$head:29500" --rdzv-id="$run" train.py
