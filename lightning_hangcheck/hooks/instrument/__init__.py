"""What is watched in a script that never heard of us: one file a watched thing.

Each wraps functions of a framework once that is imported, and imports none itself.
"""
