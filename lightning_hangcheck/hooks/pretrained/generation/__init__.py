"""TODO."""

__all__ = ["generated", "generating", "generation_watch", "limits", "pipelines"]
