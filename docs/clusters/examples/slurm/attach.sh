#!/bin/bash
# Looks at a SLURM job that hangs and was started without hangcheck: attach.sh JOB [SRUN OPTION...]
# For a container of pyxis: attach.sh JOB --container-name=train
set -uo pipefail

job=${1:?"usage: attach.sh JOB [SRUN OPTION...]"}
shift
look="$PWD/look-$job-$(date +%H%M%S)"
nodes=$(squeue --noheader --jobs="$job" --format=%D)

# --overlap: the job's own step keeps its processors and GPUs, and this one uses them beside it
srun --jobid="$job" --overlap --nodes="$nodes" --ntasks="$nodes" --ntasks-per-node=1 "$@" \
  hangcheck attach --run-dir "$look"

hangcheck merge "$look" --run-dir "$look-whole"
