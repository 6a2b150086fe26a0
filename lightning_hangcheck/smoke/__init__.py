"""`hangcheck smoke`: the same job as minimal runs in turn; the first that hangs says where to look.

`trial` chooses the runs, `sequence` makes them, `pictures` and `meaning` say what came of them in
words, `table` and `junit` write it down.
"""
