"""A network of several network namespaces that loses and delays packets, and can be cut.

``cable.py NAMESPACE...``: node N gets ``10.231.78.N+1`` on its device ``cable``. Reads one order a
line: ``delay SECONDS``, ``loss SHARE``, ``cut N``, ``join N``, and answers each with a line.
"""

import contextlib
import ctypes
import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import sys
import time

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
NEW_NETWORK = 0x40000000
DEVICE = "cable"
DESTINATION_AT = 16


def device_in(namespace, number):
    """Open a device in a namespace; this process comes back to its own."""
    own = os.open("/proc/self/ns/net", os.O_RDONLY)
    there = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        if libc.setns(there, NEW_NETWORK):
            raise OSError(ctypes.get_errno(), "setns")
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), IFF_TUN | IFF_NO_PI))
    finally:
        libc.setns(own, NEW_NETWORK)
    address = f"10.231.78.{number + 1}/24"
    for words in (["addr", "add", address, "dev", DEVICE], ["link", "set", DEVICE, "up"]):
        subprocess.run(["ip", "-n", namespace, *words], check=True, timeout=30)
    return device


def obey(words, state):
    name, value = words
    if name in ("cut", "join"):
        (state["cut"].add if name == "cut" else state["cut"].discard)(int(value))
    else:
        state[name] = float(value)


def carry(devices):
    state = {"delay": 0.0, "loss": 0.0, "cut": set()}
    chance, waiting = random.Random(7), []
    while True:
        due_s = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        ready, _, _ = select.select([0, *devices], [], [], due_s)
        for one in ready:
            if one == 0:
                line = sys.stdin.readline()
                if not line:
                    return
                obey(line.split(), state)
                print("done", flush=True)
                continue
            packet = os.read(one, 65536)
            sender, receiver = devices.index(one), packet[DESTINATION_AT + 3] - 1
            lost = chance.random() < state["loss"] or {sender, receiver} & state["cut"]
            if packet[0] >> 4 == 4 and 0 <= receiver < len(devices) and not lost:
                due = time.monotonic() + state["delay"]
                heapq.heappush(waiting, (due, len(packet), packet, receiver))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, packet, receiver = heapq.heappop(waiting)
            with contextlib.suppress(OSError):
                os.write(devices[receiver], packet)


opened = [device_in(name, number) for number, name in enumerate(sys.argv[1:])]
print("connected", flush=True)
carry(opened)
