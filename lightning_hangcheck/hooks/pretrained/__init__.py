"""Models of transformers: loaded and generating so that slow is told from hung.

Reached as ``lightning_hangcheck.transformers``. Whatever fails in here is said once; what the
user's own call raises passes through unchanged.
"""
