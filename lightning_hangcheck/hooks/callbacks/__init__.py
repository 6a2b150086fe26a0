"""The callbacks of Lightning and of Hugging Face: they tell the page where training is.

The door offers both callbacks, and which of Lightning's two packages is in use. Every hook is
guarded: one that fails is switched off and said once, and training goes on.
"""

__all__ = ["huggingface_callback", "lightning_callback", "lightning_package"]
