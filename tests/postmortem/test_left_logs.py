"""What logs of a job that is gone prove, and the mistakes that must not be made."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cases import agrees, guessed
from log_lines import HALF_HOUR, dumped, judged, raised, status, summary, timeout

BIG = 4_501_504


def odd_length(rank: int, length: int, other: int, others: int) -> str:
    """What DETAIL says on one rank of its own call and of another's."""
    prints = (
        f"Rank {one} is running collective: CollectiveFingerPrint(SequenceNumber=31,"
        f" OpType=ALLREDUCE, TensorShape=[{each}], TensorDtypes=Float,"
        " TensorDeviceTypes=TensorOptions(dtype=float (default), device=cuda))"
        for one, each in ((rank, length), (other, others))
    )
    said = f"[rank{rank}]: RuntimeError: Detected mismatch between collectives on ranks. "
    return said + ", but ".join(prints)


def desync(behind: str, ahead: str) -> str:
    """torch's desync report: who lacks an operation, and who has it."""
    return f"""[rank0]:[E515 18:36:47.343377708 ProcessGroupNCCL.cpp:1937] Rank 0
\t - [0] Timeout at collective: ALLREDUCE, #315
\t - To our best knowledge, the lagging/dead/mismatched ranks that caused the desync are:
\t     [{behind}] finished collective #182, but didn't join collective #183 (count from 1)
\t - Snapshot of ranks' latest states:
\t   #182 finished ranks:
\t     [{behind}] finished ALLREDUCE
\t   #183 started ranks:
\t     [{ahead}] started ALLREDUCE"""


def bar(done: int, spent: str) -> str:
    return f"[rank0]: Map:  60%|██████    | {done}/1000 [{spent}<17:38, 2.86s/ examples]"


def of_group(ranks: range, sizes: dict[int, int]) -> list[str]:
    """Time-outs of a group whose member 0 is the first of these ranks."""
    return [
        line
        for rank in ranks
        for line in (
            timeout(rank, 216, numel=sizes.get(rank, BIG), of=rank - ranks[0]),
            status(rank, 216, 220, 215, "119(DATA_PARALLEL)", rank - ranks[0]),
        )
    ]


BARRIER = "RuntimeError: [Rank 0]: Ranks {} failed to pass monitoredBarrier in 300000 ms"
AT, LATER, SOON = "2024-05-13_13:26:30", "2024-05-13_13:27:01", "2024-05-13_12:55:40"
CAME = (
    "RuntimeError: Timed out initializing process group in store based barrier on rank: {}, for"
    " key: store_based_barrier_key:1 (world_size={}, worker_count={}, timeout=0:30:00)"
)
FALLEN = "NVRM: Xid (PCI:0000:44:00): {}, pid=412, name=python, GPU has fallen off the bus."
OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.35 GiB. GPU 3 has"
KILLED_WORKER = "RuntimeError: DataLoader worker (pid 1562937) is killed by signal: Killed."
ALL_INSIDE = [timeout(rank, 70, numel=BIG) for rank in range(3)]
AT_ONCE = (
    "E0325 20:57:27.620000 2606 site-packages/torch/distributed/elastic/multiprocessing/api.py:869]"
    " failed (exitcode: -9) local_rank: 5 (pid: 2630) of binary: /usr/bin/python"
)
NOBODY: dict[str, Any] = {"culprits": (), "guessed": ()}
TOLD: dict[str, tuple[list[str], dict[str, Any]]] = {
    "Lightning's line of a child tells a rank on its node": (
        ["[rank: 1] Child process with PID 9487 terminated with code -9. Forcefully terminating all"
         " other processes to avoid zombies"],
        {"cause": "process_dead", "culprits": (), "guessed": (1,), "says": "local rank 1"}),
    "on the job's only node a local rank is the rank": (
        ["Initializing distributed: GLOBAL_RANK: 1, MEMBER: 2/2",
         "[rank: 1] Child process with PID 9487 terminated with code -9. Forcefully terminating"],
        {"culprits": (1,), "certainty": "proven", "world_size": 2}),
    "with as many ranks again there may be a second node": (
        ["Initializing distributed: GLOBAL_RANK: 1, MEMBER: 2/4",
         "[rank: 1] Child process with PID 9487 terminated with code -9. Forcefully terminating"],
        {"culprits": (), "guessed": (1,)}),
    "the kernel's kill is put to the process that a launcher started as a local rank": (
        [*(f"[2024-01-03 09:06:27,878] [INFO] [launch.py:256:main] process {3_960 + rank} spawned"
           f" with command: ['python', '-u', 'train.py', '--local_rank={rank}']"
           for rank in range(3)),
         "Out of memory: Killed process 3961 (python3) total-vm:412118840kB"],
        {"cause": "memory_pressure", "guessed": (1,), "says": "process of local rank 1"}),
    "DeepSpeed names the command that it started last, whoever died": (
        ["[2023-07-10 04:26:35,999] [ERROR] [launch.py:324:sigkill_handler] ['python', '-u',"
         " 'train.py', '--local_rank=1'] exits with return code = -11"],
        {"verdict": "crashed", "cause": "process_dead", **NOBODY, "says": "SIGSEGV"}),
    "mpirun names the rank": (
        ["mpirun noticed that process rank 7 with PID 311 on node gpu4 exited on signal 9"
         " (Killed)."],
        {"cause": "process_dead", "culprits": (7,), "certainty": "proven"}),
    "an actor of Ray that died without a word": (
        ["The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR"
         " Worker exit detail: Worker unexpectedly exits with a connection error code 2."],
        {"verdict": "crashed", "cause": "process_dead", **NOBODY}),
    "gloo of another size is a mismatch": (
        ["terminate called after throwing an instance of 'gloo::EnforceNotMet'",
         "  what():  [enforce fail at gloo/transport/tcp/pair.cc:446] op.preamble.length <="
         " op.nbytes. 61 vs 12"],
        {"cause": "collective_mismatch", **NOBODY}),
    "torch's stack of what timed out": (
        ["[rank3]:[E508 07:35:59.440171617 ProcessGroupNCCL.cpp:733] Stack trace of the failed"
         " collective: ",
         "#0 broadcast from /usr/lib/python3/site-packages/torch/distributed/c10d.py:2968",
         "#1 share_batch from /home/ada/train.py:91", "#2 <module> from /home/ada/train.py:140"],
        {"verdict": "hang", **NOBODY, "says": "that timed out: broadcast in share_batch (ada/"}),
    "who reports first is not the culprit": (
        [timeout(rank, 70) for rank in (3, 0, 1, 2)],
        {"verdict": "hang", **NOBODY, "says": "do not say for whom"}),
    "exit code 1 says nothing": (
        [summary((3, 1, AT), (0, -15, LATER))],
        {"verdict": "crashed", **NOBODY}),
    "a signal before anybody waited names the rank": (
        [summary((2, -11, AT))],
        {"cause": "process_dead", "culprits": (2,), "certainty": "proven",
         "now": "PYTHONFAULTHANDLER"}),
    "torchrun's line at once tells a rank on its node, which is no global one": (
        [AT_ONCE],
        {"verdict": "crashed", "cause": "process_dead", "culprits": (), "guessed": (5,)}),
    "a silent rank is unknown, not guilty": (
        [timeout(rank, 70, "_ALLGATHER_BASE", (513, 2052)) for rank in (0, 1, 2)],
        {"world_size": 4, **NOBODY, "unseen": [3]}),
    "a rank of a group is not a global rank": (
        of_group(range(4, 8), {7: 2 * BIG}),
        {"culprits": (7,), "certainty": "majority"}),
    "numbers of different groups are not compared": (
        [timeout(13, 216, "ALLREDUCE", BIG, of=1), status(13, 216, 220, 215, "119", 1),
         timeout(15, 216, "BROADCAST", 32, of=0), status(15, 216, 216, 215, "112", 0)],
        {"cause": "unknown", **NOBODY}),
    "fewer entered is not behind where all are inside": (
        [timeout(0, 70, numel=BIG), status(0, 70, 95, 69),
         timeout(1, 70, numel=BIG), status(1, 70, 70, 69)],
        NOBODY),
    "who ended the number before may be inside the call": (
        [timeout(0, 70, numel=BIG), status(0, 70, 84, 69), dumped(1, 69, 69)],
        {"culprits": (1,), "certainty": "proven", "says": "had not finished entering 70"}),
    "few ranks ahead of most do not wait for guilty ones": (
        [timeout(0, 70), status(0, 70, 70, 69), *(dumped(rank, 69, 69) for rank in (1, 2, 3))],
        {**NOBODY, "says": "may have strayed"}),
    "one late rank of many is proven": (
        [line for rank in (0, 1, 2, 4, 5)
         for line in (timeout(rank, 70, numel=BIG), status(rank, 70, 71, 69))]
        + [dumped(3, 69, 69)],
        {"culprits": (3,), "certainty": "proven", "victims": (0, 1, 2, 4, 5)}),
    "a rank in another operation than most has diverged": (
        [*(timeout(rank, 70, numel=8) for rank in (1, 2, 3)),
         timeout(0, 70, "_ALLGATHER_BASE", (8, 32))],
        {"cause": "rank_diverged", "culprits": (0,), "certainty": "majority"}),
    "RAS lists the smaller set, not the guilty one": (
        ["#0-0 (fa93daea854b060b) MISMATCH",
         "  Communicator ranks have different AllGather operation counts",
         "  30 ranks have launched up to operation 640",
         "  2 ranks have launched up to operation 641",
         "  Rank 12 -- GPU 4 managed by process 323032 on node 10.137.190.124",
         "  Rank 13 -- GPU 5 managed by process 323033 on node 10.137.190.124"],
        {"verdict": "hang", **NOBODY, "says": "30 ranks launched 640, 2 ranks launched 641. It"}),
    "how a rank dies after its time-out is a consequence": (
        [*ALL_INSIDE, "[rank1]: BrokenPipeError: [Errno 32] Broken pipe",
         summary((1, -11, "2024-05-13_13:36:00"))],
        {"verdict": "hang", **NOBODY}),
    "a kill before the others waited is the cause": (
        [summary((5, -9, SOON)), *ALL_INSIDE],
        {"verdict": "dead", "culprits": (5,), "victims": (0, 1, 2)}),
    "a barrier with a moving progress bar is slow": (
        [bar(600, "28:00"), bar(620, "29:00"), timeout(1, 3), bar(640, "30:02")],
        {"verdict": "slow", "cause": "slow_progress", "culprits": (0,), "victims": (1,),
         "now": "raise the limit"}),
    "the first operation that never ends points at the machine": (
        [timeout(1, 1), status(1, 1, 1, -1)],
        {"cause": "network_wait", **NOBODY, "says": "NCCL_P2P_DISABLE"}),
    "an exception of one rank explains the wait of the others": (
        [raised(3, "KeyError: 'label'"), *ALL_INSIDE],
        {"verdict": "dead", "cause": "process_dead", "culprits": (3,), "says": "KeyError: 'label'"},
    ),
    "each rank's own words where ranks raise differently": (
        [raised(1, "IndexError: out of range"), raised(2, "ValueError: bad shape"),
         "[rank0]: step 5", "[rank3]: step 5"],
        {**NOBODY, "says": "failed: IndexError: out of range. Rank 2 failed, too: ValueError"}),
    "an exception that all ranks raise is no rank's own": (
        [raised(rank, "ValueError: no such model") for rank in range(4)],
        {"verdict": "crashed", **NOBODY}),
    "CUDA out of memory on one rank": (
        [raised(11, OUT_OF_MEMORY), timeout(0, 70)],
        {"cause": "memory_pressure", "culprits": (11,), "certainty": "proven",
         "now": "Reduce batch size"}),
    "a dead DataLoader worker": (
        [raised(2, KILLED_WORKER)], {"cause": "dataloader_worker", "now": "num_workers"}),
    "SLURM names the task that was out of memory": (
        ["slurmstepd: error: Detected 1 oom_kill event in StepId=113.0. Some of the step tasks have"
         " been OOM Killed.",
         "srun: error: node107: task 3: Out Of Memory",
         "srun: error: node107: tasks 0-2: Killed"],
        {"cause": "memory_pressure", "culprits": (3,)}),
    "the kernel's kill is put to the rank with that process": (
        ["kernel: Memory cgroup out of memory: Killed process 36002 (python) total-vm:9kB",
         summary((2, -9, AT), (0, -15, LATER))],
        {"cause": "memory_pressure", "culprits": (2,)}),
    "a monitored barrier names who did not come": (
        [BARRIER.format("4, 5")],
        {"culprits": (4, 5), "certainty": "proven"}),
    "a desync report names the few that lag": (
        [desync("7", "0, 1, 2, 3, 4, 5, 6")],
        {"culprits": (7,), "certainty": "proven"}),
    "a desync report of ranks that joined nothing": (
        ["[rank0]:[E ProcessGroupNCCL.cpp:1937] Rank 0",
         "\t - To our best knowledge, ranks [6, 7] are the lagging ranks that caused this timeout."
         " They never joined any collectives",
         "\t - Snapshot of ranks' latest states:", "\t   #1 started ranks:",
         "\t     [0, 1, 2, 3, 4, 5] started ALLREDUCE"],
        {"culprits": (6, 7), "certainty": "proven", "says": "joined no operation at all"}),
    **{
        f"a desync report of ranks on which {op} has not ended": (
            ["[rank0]:[E ProcessGroupNCCL.cpp:1937] Rank 0",
             "\t - To our best knowledge, the lagging/dead/mismatched ranks that caused the desync"
             " are:",
             "\t   - [2] joined but didn't finish collective #3 (count from 1)",
             "\t - Snapshot of ranks' latest states:",
             "\t   #3 started ranks:", f"\t     [2] started {op}",
             "\t   #5 started ranks:", "\t     [0, 1, 3] started ALLREDUCE"],
            {"culprits": who, "says": f"{op} 3 had not ended on rank 2, and had on others"})
        for op, who in (("ALLREDUCE", (2,)), ("BROADCAST", ()))
    },
    "torch before 1.13 writes no number": (
        ["  what():  [Rank 5] Watchdog caught collective operation timeout: WorkNCCL(OpType="
         "BROADCAST, Timeout(ms)=1800000) ran for 1801256 milliseconds before timing out."],
        {"verdict": "hang", **NOBODY, "says": "Rank 5 waited in BROADCAST"}),
    "a desync report does not name the many": ([desync("1, 2, 3, 4, 5, 6, 7", "0")], NOBODY),
    "DETAIL with more ranks names the odd one": (
        [odd_length(rank, 400, 3, 900) for rank in range(3)],
        {"cause": "collective_mismatch", "culprits": (3,), "certainty": "majority"}),
    "a network that fails below NCCL": (
        ["x [4] NCCL WARN NET/IB : Got completion from peer 10.0.0.7<54862>"],
        {"cause": "network_wait", **NOBODY, "now": "nccl-tests"}),
    "clients that never came": (
        ["torch.distributed.DistStoreError: Timed out after 1801 seconds waiting for clients."
         " 1/3 clients joined."],
        {"cause": "rendezvous", "world_size": 3, **NOBODY, "says": "1 of 3 processes"}),
    "who came is named, so the others are known": (
        [CAME.format(rank, 4, 3) for rank in (0, 1, 3)],
        {"cause": "rendezvous", "culprits": (2,), "victims": (0, 1, 3)}),
    "not all that came are named": (
        [CAME.format(rank, 4, 3) for rank in (0, 1)],
        {"cause": "rendezvous", **NOBODY, "says": "3 of 4 processes came"}),
    "a store that counts an earlier start": (
        [CAME.format(rank, 2, 4) for rank in (0, 1)],
        {"cause": "rendezvous", **NOBODY, "says": "4 processes, for 2 ranks, came"}),
    "a lost node is named with its ranks, and not those that srun ends then": (
        [*(f"gpu-{16 + rank // 2}:{500 + rank}:600 [0] NCCL INFO ncclCommInitRank comm 0x5 rank"
           f" {rank} nranks 4 cudaDev 0 - Init COMPLETE" for rank in range(4)),
         "srun: error: Node failure on gpu-17", "srun: error: gpu-16: tasks 0-1: Killed"],
        {"verdict": "crashed", "culprits": (2, 3), "says": "gpu-17 was lost"}),
    "a batch that was skipped for want of memory is no end": (
        ["[rank1]: WARNING: skipping batch: CUDA out of memory. Tried to allocate 2.00 GiB",
         "[rank1]: step 119 skipped", "[rank0]: step 119 done", timeout(0, 70)],
        {"verdict": "hang", **NOBODY}),
    "native code of one rank that found no memory": (
        ["[rank2]: terminate called after throwing an instance of 'std::bad_alloc'",
         "[rank0]: step 3"],
        {"cause": "memory_pressure", "culprits": (2,)}),
    "a pod that the kubelet evicted": (
        ["4m11s  Warning  Evicted  pod/llm-worker-3  The node was low on resource: memory.",
         "[rank0]: x [4] NCCL WARN Net : Connection closed by remote peer 10.0.0.7<54862>"],
        {"cause": "memory_pressure", **NOBODY}),
    "who had ended long before the time-out is what the others waited for": (
        [timeout(0, 70, numel=BIG), summary((9, 1, SOON), (0, -6, LATER))],
        {"verdict": "dead", "culprits": (9,), "certainty": "proven", "says": "with exit code 1"}),
    **{
        f"nor {why}": (
            [timeout(0, 70, numel=BIG), *lines], {"culprits": (), "guessed": guess})
        for why, lines, guess in (
            ("who aborted, perhaps after an own time-out", [summary((9, -6, SOON))], ()),
            ("who lost another one", [summary((9, 1, SOON)), raised(9, "RuntimeError: [pair.cc:598]"
             " Connection closed by peer [18.25.6.30]:28048")], ()),
            ("one of several that ended then", [summary((9, 1, SOON), (8, 1, SOON))], (8, 9)),
        )
    },
    "who ended in an earlier round is not": (
        [timeout(0, 70, numel=BIG), summary((9, 1, "2024-05-13_11:02:11"))],
        {"verdict": "hang", **NOBODY}),
    "srun's labels are nodes where torch's tags are others": (
        [*(f"{node}: step {step}" for step in range(9) for node in (0, 1)),
         "\n".join(f"1: {line}" for line in raised(9, "ValueError: auto").splitlines()),
         f"0: {timeout(3, 70)}"],
        {"verdict": "dead", "culprits": (9,), "certainty": "proven"}),
    "a GPU fault is put to the rank with that process": (
        [FALLEN.format(79),
         "node0:412:900 [2] NCCL INFO comm 0x7f rank 6 nranks 8 cudaDev 2 busId 44000 - Init"
         " COMPLETE"],
        {"culprits": (6,), "says": "Xid 79", "now": "out of use"}),
    "a job that was cancelled": (
        ["slurmstepd: error: *** JOB 91 ON node1 CANCELLED AT 2024-05-13T13:00:00 DUE TO TIME"
         " LIMIT ***"],
        {"verdict": "crashed", "says": "The job was ended from outside: due to time limit"}),
    "a job that ended well": (
        ["`Trainer.fit` stopped: `max_epochs=3` reached."],
        {"verdict": "healthy"}),
    "a job that ended well after what it survived, and as its connections closed": (
        [raised(None, "OSError: no cache"), "`Trainer.fit` stopped: `max_epochs=3` reached.",
         "x [4] NCCL WARN Net : Connection closed by remote peer 10.0.0.7<54862>"],
        {"verdict": "healthy"}),
    "what Python itself goes on from": (
        ["[rank1]: Exception ignored in: <function X.__del__ at 0x7f>",
         raised(1, "AttributeError: 'X' object has no attribute 'fd'"), "[rank0]: step 3"],
        {"verdict": "healthy"}),
    "what is raised after the training is no success": (
        ["`Trainer.fit` stopped: `max_epochs=3` reached.", raised(2, "OSError: disk full"),
         "[rank0]: done"],
        {"verdict": "crashed", "culprits": (2,)}),
    "logs without any trouble": (
        ["[rank0]: epoch 3 loss 0.1",
         "x:1:2 [0] NCCL WARN NET/Plugin: Failed to find ncclNetPlugin_v6 symbol.",
         "x:1:2 [0] NCCL WARN NET/OFI Only EFA provider is supported",
         "x:1:2 [0] misc/ibvwrap.cu:63 NCCL WARN Failed to open libibverbs.so[.1]"],
        {"verdict": "healthy"}),
    "of a job that was restarted the last round counts": (
        [raised(1, "KeyError: 'label'"),
         "[default] Worker group FAILED. 3/3 attempts left; will restart worker group",
         *(timeout(rank, 70) for rank in (0, 1))],
        {"verdict": "hang", **NOBODY}),
    "of rounds that torchrun ends by a failure each the last counts": (
        [raised(1, "KeyError: 'label'"), f"E1127 22:15:07.155000 {AT_ONCE[22:]}",
         *(timeout(rank, 70) for rank in (0, 1)), f"E1127 22:35:07.155000 {AT_ONCE[22:]}"],
        {"verdict": "hang", **NOBODY}),
    "launchers of one number on two nodes are no two rounds": (
        [raised(1, "KeyError: 'label'"), "[rank0]: step 3",
         *2 * [f"E1127 22:15:07.155000 {AT_ONCE[22:]}".replace("-9", "1")],
         *2 * [summary((1, 1, AT), (0, -15, LATER))]],
        {"verdict": "crashed", "culprits": (1,), "certainty": "proven"}),
    "groups that each rank numbers for itself are not compared": (
        [line for rank, of, op in ((0, 0, "ALLREDUCE"), (5, 1, "BROADCAST"), (6, 2, "BROADCAST"))
         for line in (timeout(rank, 7, op, of=of),
                      f"[rank{rank}]:[E ProcessGroupNCCL.cpp:1537] [PG 1 Rank {of}] Timeout at NCCL"
                      " work: 7, last enqueued NCCL work: 7, last completed NCCL work: 6.")],
        {"cause": "unknown", **NOBODY}),
    "few ranks of unknown many are no majority": (
        [timeout(rank, 70, numel=8) for rank in (3, 9)] + [timeout(7, 70, "BROADCAST")],
        {"verdict": "hang", **NOBODY}),
    "a time-out that names no group is joined to those of its operation": (
        [timeout(0, 70, of=0), status(0, 70, 72, 69, "5", 0), timeout(3, 70, of=3)],
        {**NOBODY, "victims": (0, 3), "says": "Ranks 0,3 waited in operation 70"}),
    "a segmentation fault that Python tells is no stack of a rank that is stuck": (
        ["Fatal Python error: Segmentation fault", "",
         "Current thread 0x00007fa2972464c0 (most recent call first):",
         '  File "/home/ada/train.py", line 88 in step'],
        {"verdict": "crashed", **NOBODY, "says": "Segmentation fault in step (", "now": "FAULT"}),
    "NCCL's own error tells of the others": (
        ["[rank3]: torch.distributed.DistBackendError: NCCL error in: x.cpp:3763, remote process"
         " exited or there was a network error, NCCL version 2.28.8",
         "[rank3]: Last error:", "[rank3]: NET/OFI Request completed with error. RC: 113."],
        {"cause": "network_wait", **NOBODY, "fact": "NET/OFI"}),
    "of a group's number nothing tells the rank": (
        ["[E ProcessGroupNCCL.cpp:915] [Rank 0] watchdog ended: CUDA error: unknown error"],
        {"verdict": "crashed", "culprits": (), "guessed": (0,)}),
    "who waited for another one is not at fault": (
        [raised(1, "TimeoutError: rank 0 did not finish preprocessing within 300 s"),
         "[rank0]: Map:  60%"],
        {"verdict": "crashed", "culprits": (), "guessed": (0,), "says": "Rank 1 waited in vain"}),
    "an exception after which a rank went on as the others is no end": (
        [raised(3, "OSError: bad image"), *(f"[rank{rank}]: step 4{rank}" for rank in (0, 3)),
         timeout(0, 7)],
        {"verdict": "hang", **NOBODY}),
    "a key of the store that nobody set": (
        [raised(2, "torch.distributed.DistStoreError: wait timeout after 8000ms, keys: /done")],
        {"verdict": "hang", **NOBODY, "says": "Rank 2 waited 8 s for what some rank puts under"}),
    "srun ends a step after a task's own end": (
        ["srun: error: gpu01: task 2: Exited with exit code 1",
         "slurmstepd: error: *** STEP 88.0 ON gpu01 CANCELLED AT 2024-01-02T10:00:00 ***"],
        {**NOBODY, "says": "task 2: Exited with exit code 1"}),
    "a full /dev/shm": (
        ["[3] include/shm.h:28 NCCL WARN Call to posix_fallocate failed : No space left on device",
         "[3] NCCL WARN Error while creating shared memory segment nccl-shm-recv-1 (size 9637888)"],
        {"verdict": "crashed", **NOBODY, "now": "--shm-size"}),
    "who lost no connection may have ended first": (
        [raised(rank, "RuntimeError: [pair.cc:537] Read error: Connection reset by peer")
         for rank in (0, 1, 2)] + ["[rank3]: leaving"],
        {"verdict": "crashed", "culprits": (), "guessed": (3,), "says": "how rank 3 ended"}),
    "an error in a DataLoader worker is that of the code it ran": (
        [raised(2, "OSError: Caught OSError in DataLoader worker process 0."),
         raised(2, "OSError: no such file").replace("Traceback", "Original Traceback"),
         "[rank0]: step 3"],
        {"cause": "process_dead", "culprits": (2,), "says": "OSError: no such file"}),
    **{
        f"a server that did not answer in {where}": (
            [raised(0, error, where).replace("in main", f"in {function}"),
             "[rank1]: RuntimeError: Rank 1 successfully reached monitoredBarrier, but received"
             " errors while waiting for send/recv from rank 0."],
            {"cause": cause, "culprits": (0,), "now": now})
        for error, where, function, cause, now in (
            ("wandb.errors.CommError: Run initialization has timed out after 90.0 sec.",
             "site-packages/wandb/sdk/wandb_init.py", "init", "logger_init", "guarded_wandb"),
            ("requests.exceptions.ConnectionError: HTTPSConnectionPool(host='huggingface.co',"
             " port=443): Max retries exceeded ('Connection aborted.')",
             "site-packages/transformers/modeling_utils.py", "from_pretrained", "network_wait",
             "local_files_only"),
            ("OSError: [Errno 28] No space left on device",
             "site-packages/torch/serialization.py", "save", "checkpoint_io", "df -h"),
        )
    },
    **{
        f"{line.split()[0]} tells a code": ([line], {"verdict": "crashed", "culprits": who,
                                                     "says": says})
        for line, who, says in (
            ("ERROR:composer.cli.launcher:Rank 2 crashed with exit code -7.", (2,), "SIGBUS"),
            ("run.sh: line 28:  8156 Segmentation fault   python train.py", (), "SIGSEGV"),
        )
    },
    **{
        f"a rank that lost another names nobody: {error[:40]}": ([raised(1, error)], NOBODY)
        for error in (
            "torch.distributed.DistBackendError: NCCL communicator was aborted on rank 1.",
            "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]",
        )
    },
}  # fmt: skip


@pytest.mark.parametrize("name", TOLD)
def test_what_logs_prove(name: str) -> None:
    lines, expected = TOLD[name]
    agrees(judged(*lines), expected)


def test_last_words_tell_which_of_two_ranks_is_late() -> None:
    words = {"rank0": "13:00:10,228 step=41 after_step\n", "rank1": "12:55:46,875 step=41 before\n"}
    lines = (timeout(0, 70), status(0, 70, 70, 69), dumped(1, 69, 69))
    assert judged(*lines).culprits == ()
    assert guessed(judged(*lines)) == (1,)
    found = judged(*lines, **words)
    assert (found.culprits, found.certainty) == ((1,), "proven")
    assert "before" in found.summary
    jumped = judged(timeout(0, 70, ran=HALF_HOUR * 9), *lines[1:], **words)
    assert jumped.culprits == (), "a clock that jumped orders nothing"
    assert any("times in these logs jump" in gap.why for gap in jumped.gaps)


@pytest.mark.parametrize("before", ["Saving image {}.png", "Saving checkpoint step_{}"])
def test_thousands_of_alike_lines_hide_not_the_last_one(before: str) -> None:
    lines = [before.format(number) for number in range(2_500)]
    found = judged(*lines, "Saving checkpoint at the end", timeout(1, 70))
    assert (found.cause, guessed(found)) == ("checkpoint_io", (0,))
    assert any("2501: Saving checkpoint at the end" in one.text for one in found.evidence)


def test_secrets_in_quoted_lines_are_hidden() -> None:
    found = judged(
        raised(1, "ValueError: bad WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567")
    )
    shown = found.summary + json.dumps([one.text for one in found.evidence])
    assert "ValueError: bad" in shown
    assert "0123456789abcdef0123" not in shown
