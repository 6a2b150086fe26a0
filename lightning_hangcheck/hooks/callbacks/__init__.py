"""The callbacks of Lightning and of Hugging Face: they tell the page where training is.

The door offers both callbacks, which of Lightning's two packages is in use, and the guard that is
over every hook: one that fails is switched off and said once, and training goes on.
"""
