"""The half of a rehearsal inside a rank: few batches, on CPUs, and the scene that is provoked.

`hangcheck rehearse` names the scene in the environment. What a scene provokes is what can happen to
a real rank: its data, its loss, its save, its signal; never a decision that the program itself
makes for all ranks together. A program that lets its ranks agree therefore passes.

`on_cpus` takes part and makes the run short, `scenes` provokes and keeps the notes.
"""
