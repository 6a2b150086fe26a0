"""A run in the formats of other tools: a trace for Perfetto, merged stacks for speedscope, dumps.

`trace_events` declares Perfetto's format and `perfetto` fills it; `speedscope` does both for its
own; `stack_dumps` writes what `py-spy dump` prints.
"""
