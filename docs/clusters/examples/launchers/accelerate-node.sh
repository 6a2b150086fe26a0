#!/bin/bash
# accelerate on two nodes of eight GPUs; start this on each: accelerate-node.sh HEAD_NODE NUMBER
set -euo pipefail

head=${1:?"usage: accelerate-node.sh HEAD_NODE NUMBER"}
number=${2:?"usage: accelerate-node.sh HEAD_NODE NUMBER"}

exec hangcheck run --on-hang abort --run-dir "runs/node-$number" -- \
  accelerate launch --multi_gpu --num_machines 2 --num_processes 16 --machine_rank "$number" \
    --main_process_ip "$head" --main_process_port 29500 train.py
