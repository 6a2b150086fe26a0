#!/bin/bash
# accelerate on two nodes of eight GPUs; start this on each, with one name of the run for both:
# accelerate-node.sh HEAD_NODE NUMBER RUN
# All keep it in runs/RUN, on storage that they share.
set -euo pipefail

head=${1:?"usage: accelerate-node.sh HEAD_NODE NUMBER RUN"}
number=${2:?"usage: accelerate-node.sh HEAD_NODE NUMBER RUN"}
run=${3:?"usage: accelerate-node.sh HEAD_NODE NUMBER RUN"}

exec hangcheck run --on-hang abort --run-dir "runs/$run" -- \
  accelerate launch --multi_gpu --num_machines 2 --num_processes 16 --machine_rank "$number" \
    --main_process_ip "$head" --main_process_port 29500 train.py
