"""The page of shared memory on which a rank shows where it is: its layout, writers and reader.

The rank writes with `writer` and `beat_writer`, without a lock or a system call; the sidecar reads.
"""
