"""Files that others can reach: opened, written and read without harm and without endless waits.

`safe` opens what somebody else may have put there, writes so that no reader sees half a file,
decodes facts, and maps what processes share. `apart` touches storage that may never answer.
"""
