"""What this process is, and when it must act.

`process_facts` tells a rank from a rank's helper, `lone_process` whether it is the only one of its
job, `process_hooks` the moments at which the recorder acts: fork, exit, an exception.
"""
