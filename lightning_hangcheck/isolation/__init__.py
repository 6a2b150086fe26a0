"""How processes of our own start: with nothing foreign in reach, and no secret handed on.

`command` says what is started and what of the environment is handed on; `entry` is the file that a
Python of our own begins with.
"""
