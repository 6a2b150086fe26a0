"""`hangcheck postmortem`: what can be said of a job that is gone, from the files that are left.

files -> each file known by its content, read within bounds (`files`)
-> flight records of one incident, told apart from others (`flight_records`); logs and stacks
-> one case of one job, judged and saved as a live one is (`postmortem`)
"""
