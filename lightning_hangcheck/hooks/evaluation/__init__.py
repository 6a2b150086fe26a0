"""Evaluation on one rank in the midst of training, while the others wait for it, with a limit.

`evaluation` is what a script calls; `turns` holds the order of its steps, `results` looks at the
files that it leaves, `off_gpu` makes room for it.
"""
