"""The commands, one a file, each thin: arguments in, a room's work, text and an exit code out.

Each is a function of its file's name, without the ``_command``; `cli.main` finds them by that.
"""
