"""What is known of other people's code and of causes: data files, and how they are looked up.

frames.toml tells what a function of a library means for the thread in it, causes.toml what a cause
is and what helps. Neither needs code to be extended.
"""

__all__ = ["frames", "loading"]
