"""Loading a model or tokenizer of transformers, each file of weights timed.

`loading` is what users call. `watched_load` goes around every load: `source` says where it comes
from, `traps` what is known to go wrong, `loading_seams` and `shard_progress` how far it is.
"""
