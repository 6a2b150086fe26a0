"""What the machine allows a process and tells of it.

Room for threads of ours and the one way to start them, control groups, the line of /proc/PID/stat,
whether what is printed is seen at once, which storage is of a network, which machine it is.
"""
