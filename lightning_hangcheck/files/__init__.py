"""Files that others can reach: opened, written and read so that nobody is harmed or held up.

`safe` opens what somebody else may have put there, writes so that no reader sees half a file, makes
facts of bytes, and maps what processes share. `apart` touches storage that may never answer.
"""
