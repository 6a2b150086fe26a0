"""What training goes on from: which checkpoint is loaded, and what checkpoints hold.

The door offers what says a resumption (`resuming`), what a checkpoint holds by its names
(`contents`), and what says that all saves lack something (`saves`).
"""
