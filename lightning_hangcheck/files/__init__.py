"""Files that others can reach: opened, written and read so that nobody is harmed or held up.

`owned_file` opens what somebody else may have put there, `atomic` writes so that no reader sees
half a file, `apart` touches storage that may never answer, `decoding` makes facts of bytes,
`reserved_memory` maps what processes share.
"""
