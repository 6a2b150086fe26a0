"""Takes a sample of a process, and prints it with its gaps."""

import sys

import msgspec

from lightning_hangcheck.look.sample import sample

seen, gaps = sample(int(sys.argv[1]), 3, 10.0)
print(msgspec.json.encode({"sample": seen, "gaps": gaps}).decode())
