"""Takes a sample of a process, and prints it with its gaps."""

import sys

import msgspec

from lightning_hangcheck.look.sample import Target, sample_all

seen, gaps = sample_all([Target(pid=int(sys.argv[1]), rank=3)], 10.0)[0]
print(msgspec.json.encode({"sample": seen, "gaps": gaps}).decode())
