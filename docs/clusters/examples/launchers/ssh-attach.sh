#!/bin/bash
# Looks at a job on several hosts by ssh: ssh-attach.sh HOSTFILE
# The hosts share /shared/env, in which lightning-hangcheck is installed.
set -uo pipefail

hosts=${1:?"usage: ssh-attach.sh HOSTFILE"}

hangcheck attach --hostfile "$hosts" --host-timeout 90 --run-dir "look-$(date +%Y%m%dT%H%M%S)" \
  --remote-command /shared/env/bin/hangcheck
