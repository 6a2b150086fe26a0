"""Lets all ranks share one GPU: import it before torch.

NCCL refuses two ranks of one machine on one GPU. Each rank says that it is a machine of its own, so
they talk by sockets, and all take the first GPU.
"""

import os

rank = os.environ["RANK"]
os.environ["NCCL_HOSTID"] = f"rank {rank}"
os.environ["NCCL_SOCKET_IFNAME"] = "lo"
os.environ.update(LOCAL_RANK="0", LOCAL_WORLD_SIZE="1", GROUP_RANK=rank, NODE_RANK=rank)
