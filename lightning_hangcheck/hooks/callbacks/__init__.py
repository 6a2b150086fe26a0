"""TODO."""

__all__ = ["huggingface_callback", "lightning_callback", "lightning_package"]
