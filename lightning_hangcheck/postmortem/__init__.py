"""`hangcheck postmortem`: what can be said of a job that is gone, from the files that are left.

files -> each file known by its content, read within bounds (`files`, a table of readers)
-> flight records of one incident, told apart from others (`records`)
-> one case of one job (`case`), judged and saved as a live one is (`postmortem`)
"""
