"""A process group that behaves as NCCL's does, on CPU: for programs that hang as on GPUs.

Operations are queued and run in order, by a thread for each group,
over gloo; ``wait()`` of what was started returns at once, so ranks run ahead of their device. What
waits for it spins in one C call, with the interpreter lock released, as ``cudaStreamSynchronize``
does: `Loss.item` shows no frame of its own, `torch.cuda.synchronize` is torch's own function. The
flight record is served where NCCL's is, in its form, and keeps only what has not ended.

Import it before torch: gloo's own record would tell what NCCL's cannot.
"""

import atexit
import ctypes
import json
import os
import queue
import threading
import time
from collections import OrderedDict
from contextlib import nullcontext
from functools import partial
from operator import attrgetter
from pathlib import Path

os.environ["TORCH_FR_BUFFER_SIZE"] = "0"

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as bindings

MOST_AHEAD = 1024
"""Operations that a rank may be ahead of its device, as launches that wait in a CUDA stream."""
libc = ctypes.CDLL(None)


class SpinGate:
    """Closed until it is opened. Who passes spins in C meanwhile, without the interpreter lock."""

    def __init__(self):
        self._word = ctypes.c_int()
        libc.pthread_spin_init(ctypes.byref(self._word), 0)
        libc.pthread_spin_lock(ctypes.byref(self._word))
        self.pass_through = partial(libc.pthread_spin_lock, ctypes.byref(self._word))

    def open(self):
        libc.pthread_spin_unlock(ctypes.byref(self._word))


class Loss:
    """A number on the device: reading it waits for all that was queued before it."""

    def __init__(self, gate):
        self.item = gate.pass_through
        self.cpu = gate.pass_through
        self.tolist = gate.pass_through


class Queued(dist._Work):
    def __init__(self, output):
        super().__init__()
        self._output = output
        self._future = torch.futures.Future()

    def wait(self, timeout=None):
        return True

    def is_completed(self):
        return self._future.done()

    def get_future(self):
        return self._future

    def end(self):
        self._future.set_result(self._output)


def _calling(name, *arguments):
    return lambda gloo: getattr(gloo, name)(*arguments)


class QueuedGroup(dist.ProcessGroup):
    def __init__(self, store, rank, size, members, name):
        super().__init__(rank, size)
        self._store = store
        self._gloo = {}
        self._queue = queue.Queue()
        self._earlier = None
        self._lock = threading.Lock()
        self._open = OrderedDict()
        self._operations = self._collectives = self._messages = 0
        self._newest = self._ended = 0
        self.members = members
        self.names = [name, "default_pg" if name == "0" else "undefined"]
        self.number = len(GROUPS)
        GROUPS.append(self)
        threading.Thread(target=self._run, daemon=True, name="pt_nccl_stream").start()

    def getBackendName(self):  # noqa: N802 - torch's own name
        return "queued"

    def _run(self):
        while True:
            operation, shapes, call, work, gate = self._queue.get()
            if call is not None:
                call(self._gloo_for(shapes)).wait()
            with self._lock:
                ended = self._open.pop(operation, None)
                self._ended = self._ended if ended is None else _number(ended)
            if work is not None:
                work.end()
            if gate is not None:
                gate.open()

    def _gloo_for(self, shapes):
        """Ranks that meet with other shapes wait for ever; gloo's own answer to that is an abort.

        The store's client answers one at a time: with one for all, a group whose ranks have not all
        come would hold the others up.
        """
        if shapes not in self._gloo:
            store = dist.PrefixStore(f"{shapes}", self._store.clone())
            self._gloo[shapes] = dist.ProcessGroupGloo(store, self.rank(), self.size())
        return self._gloo[shapes]

    def _enqueue(self, name, inputs, call, output, *, paired=False):
        work = Queued(output)
        with self._lock:
            self._operations += 1
            operation = self._operations
            self._collectives += not paired
            self._messages += paired
            entry = self._open[operation] = self._entry(name, inputs, paired=paired)
            self._newest = _number(entry)
        shapes = () if paired else tuple(tuple(one.shape) for one in inputs)
        self._queue.put((operation, shapes, call, work, None))
        if operation % (MOST_AHEAD // 2) == 0:
            earlier, self._earlier = self._earlier, self.gate()
            if earlier is not None:
                earlier.pass_through()
        return work

    def gate(self):
        gate = SpinGate()
        self._queue.put((0, (), None, None, gate))
        return gate

    def _entry(self, name, inputs, *, paired):
        """Messages are counted apart, and tell the collective before them."""
        return {
            "record_id": self._operations,
            "pg_id": self.number,
            "process_group": self.names,
            "collective_seq_id": self._collectives,
            "p2p_seq_id": self._messages if paired else 0,
            "op_id": self._operations,
            "profiling_name": f"nccl:{name}",
            "time_created_ns": time.time_ns(),
            "input_sizes": [list(one.shape) for one in inputs],
            "input_dtypes": [DTYPES.get(one.dtype, "Float") for one in inputs],
            "output_sizes": [list(one.shape) for one in inputs],
            "output_dtypes": [DTYPES.get(one.dtype, "Float") for one in inputs],
            "state": "scheduled",
            "time_discovered_started_ns": None,
            "time_discovered_completed_ns": None,
            "retired": False,
            "timeout_ms": 600000,
            "is_p2p": paired,
        }

    @property
    def used(self):
        """NCCL's record knows a group from its first operation on."""
        return self._operations > 0

    def described(self):
        with self._lock:
            entries = list(self._open.values())
            config = {"name": self.names[0], "desc": self.names[1], "ranks": str(self.members)}
            status = {
                "last_enqueued_collective": str(self._newest),
                "last_started_collective": "-1",
                "last_completed_collective": str(self._ended),
            }
        return entries, config, status

    def allreduce(self, tensors, opts=None):
        call = _calling("allreduce", tensors, opts or dist.AllreduceOptions())
        return self._enqueue("all_reduce", tensors, call, tensors)

    def broadcast(self, tensors, opts=None):
        call = _calling("broadcast", tensors, opts or dist.BroadcastOptions())
        return self._enqueue("broadcast", tensors, call, tensors)

    def allgather(self, outputs, inputs, opts=None):
        call = _calling("allgather", outputs, inputs, opts or dist.AllgatherOptions())
        return self._enqueue("all_gather", inputs, call, outputs)

    def _allgather_base(self, output, input_, opts=None):
        call = _calling("_allgather_base", output, input_, dist.AllgatherOptions())
        return self._enqueue("_all_gather_base", [input_], call, [output])

    all_gather_single = _allgather_base

    def reduce(self, tensors, opts=None):
        call = _calling("reduce", tensors, opts or dist.ReduceOptions())
        return self._enqueue("reduce", tensors, call, tensors)

    def barrier(self, opts=None):
        """As NCCL's: an all-reduce of one number for which the host waits, in C."""
        ones = [torch.zeros(1)]
        call = _calling("allreduce", ones, dist.AllreduceOptions())
        work = self._enqueue("all_reduce_barrier", ones, call, ones)
        work.wait = self.gate().pass_through
        return work

    def send(self, tensors, peer, tag=0):
        call = _calling("send", tensors, peer, tag)
        name = f"send {self.rank()}->{peer}"
        return self._enqueue(name, tensors, call, tensors, paired=True)

    def recv(self, tensors, peer, tag=0):
        call = _calling("recv", tensors, peer, tag)
        name = f"recv {self.rank()}<-{peer}"
        return self._enqueue(name, tensors, call, tensors, paired=True)


BACKEND = "queued"
DEVICE = torch.device("cpu")
GROUPS = []
DTYPES = {torch.float32: "Float", torch.float64: "Double", torch.int64: "Long", torch.uint8: "Byte"}


def _number(entry):
    """As torch's status counts: by that of a message, where the operation is one."""
    return entry["p2p_seq_id"] if entry["is_p2p"] else entry["collective_seq_id"]


def _make(options, _backend_options):
    members = list(options.global_ranks_in_group) or list(range(options.group_size))
    rank, size = options.group_rank, options.group_size
    return QueuedGroup(options.store, rank, size, members, options.group_id)


def _tell_record(_request, response):
    entries, groups, status = [], {}, {}
    for group in filter(attrgetter("used"), GROUPS):
        open_entries, config, counts = group.described()
        entries += open_entries
        groups[group.names[0]] = config
        status[str(group.number)] = counts
    told = {"version": "2.10", "pg_config": groups, "pg_status": status, "entries": entries}
    response.set_content(json.dumps(told), "application/json")
    response.set_status(200)


def _hide_record():
    """Take the names from this process's sockets: nobody may ask for the record any more.

    NCCL's recorder is C++ and answers as long as there is a process. This one is Python: a thread
    of torch's server that wants the interpreter lock of an ending interpreter is ended by pthread,
    and the process aborts.
    """
    own = {f"socket:[{line.split()[6]}]": line.split()[7:] for line in _unix_sockets()}
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            names = own.get(str(descriptor.readlink()), [])
        except OSError:  # the folder's own descriptor
            continue
        for name in names:
            Path(name).unlink(missing_ok=True)


def _unix_sockets():
    return Path("/proc/net/unix").read_text().splitlines()[1:]


def _pass_all_gates():
    for gate in [group.gate() for group in GROUPS]:
        gate.pass_through()


def _pretend_a_gpu():
    """torch.cuda.synchronize is torch's own function, down to its call into C."""
    torch.cuda._lazy_init = lambda: None
    torch.cuda._exchange_device = lambda _: -1
    torch.cuda._maybe_exchange_device = lambda _: -1
    torch._C._cuda_synchronize = lambda: None


def side_stream():
    return nullcontext()  # each group has a queue of its own here


def synchronize():
    """Wait for all that was queued, in torch's own function and one C call."""
    for group in GROUPS:
        torch._C._cuda_synchronize = group.gate().pass_through
        torch.cuda.synchronize()


def loss():
    """A number that is known once all that was queued in the default group is done."""
    return Loss(GROUPS[0].gate())


def work_long(seconds):
    """Queue work for so long: nothing of it runs on the rank's own thread."""

    def kernel(_gloo):
        time.sleep(seconds)
        return Queued(None)

    GROUPS[0]._enqueue("all_reduce", [torch.ones(1)], kernel, None)


bindings._register_handler("dump_nccl_trace_json", _tell_record)
atexit.register(_hide_record)
dist.Backend.register_backend("queued", _make, extended_api=True, devices=["cpu"])
_pretend_a_gpu()
