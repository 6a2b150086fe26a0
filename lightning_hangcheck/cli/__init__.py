"""The command `hangcheck`: one file a command, each calling what a library user would call.

A command is a function of its file's name, without the ``_command``; `main` finds it by that.
"""
