#!/bin/bash
# An elastic job: two to four nodes, and after a hang torchrun starts the ranks again, three times.
# Start this on each node: torchrun-elastic.sh HEAD_NODE
set -euo pipefail

head=${1:?"usage: torchrun-elastic.sh HEAD_NODE"}

exec hangcheck run --on-hang restart --run-dir "runs/$(hostname)-$(date +%Y%m%dT%H%M%S)" -- \
  torchrun --nnodes=2:4 --nproc-per-node=8 --max-restarts=3 \
    --rdzv-backend=c10d --rdzv-endpoint="$head:29500" --rdzv-id=train train.py
