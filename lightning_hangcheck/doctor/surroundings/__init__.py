"""What the environment of the ranks brings along: variables, caches, servers, versions."""

__all__ = ["debug_settings", "hugging_face", "questions"]
