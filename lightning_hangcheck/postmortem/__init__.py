"""`hangcheck postmortem` explains a job that is gone, from the files that it left.

files -> each file is recognised by its content and read within limits (`files`)
-> flight records of one incident are separated from others (`flight_records`); logs and stacks
-> one case of one job is built, judged and saved like a live one (`postmortem`)
"""
