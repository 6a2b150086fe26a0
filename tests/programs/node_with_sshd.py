"""A host of its own: a pid namespace and host name, an sshd on loopback, and a node's ranks.

Arguments: the host's name, sshd's configuration, the node's number, ranks a node, nodes. Rank 1 of
the job stands in its own code, the others in a barrier. Each rank announces itself.
"""

import os
import subprocess
import sys
from pathlib import Path

NAMESPACE = ["unshare", "--pid", "--uts", "--fork", "--mount-proc", "--kill-child"]
RANKS = str(Path(__file__).with_name("starting_ranks.py"))


def becomes_the_node(name, config, number, here, nodes):
    subprocess.run(["hostname", name], check=True)
    pipe = int(os.environ["HANGCHECK_TEST_ANNOUNCE"])
    sshd = subprocess.Popen(["/usr/sbin/sshd", "-D", "-e", "-f", config])
    told = {"WORLD_SIZE": str(here * nodes), "LOCAL_WORLD_SIZE": str(here)}
    told |= {"MASTER_ADDR": "node0", "MASTER_PORT": "29500"}
    for local in range(here):
        rank = number * here + local
        subprocess.Popen(
            [sys.executable, RANKS, "stuck", "rank", str(rank)],
            env={**os.environ, **told, "RANK": str(rank), "LOCAL_RANK": str(local)},
            pass_fds=[pipe],
        )
    sshd.wait()


if "inside" in sys.argv:
    becomes_the_node(*sys.argv[2:4], *map(int, sys.argv[4:]))
else:
    pipe = int(os.environ["HANGCHECK_TEST_ANNOUNCE"])
    inside = [sys.executable, __file__, "inside", *sys.argv[1:]]
    subprocess.run([*NAMESPACE, *inside], pass_fds=[pipe], check=False)
