#!/bin/bash
# In place of ssh for `hangcheck attach --hostfile PODS --ssh ./kubectl-as-ssh.sh`: a host is a pod.
# Called as ssh is: options, two dashes, the pod, a line for its shell.
# DEBUG_IMAGE=IMAGE looks from a container of its own beside the job's, which needs no hangcheck.
set -uo pipefail

while [ "$1" != -- ]; do shift; done
pod=$2 line=$3

if [ -z "${DEBUG_IMAGE:-}" ]; then
  exec kubectl exec "$pod" --container=pytorch -- sh -c "$line"
fi
# --target: it shares the process namespace of that container
exec kubectl debug "$pod" --image="$DEBUG_IMAGE" --target=pytorch --profile=general \
  --custom="$(dirname "$0")/debug-container.yaml" --stdin --quiet -- sh -c "$line"
