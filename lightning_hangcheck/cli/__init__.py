"""The command `hangcheck`: one file per command, each calling what a library user would call.

A command's function has its file's name without ``_command``; `main` finds it by that name.
"""
