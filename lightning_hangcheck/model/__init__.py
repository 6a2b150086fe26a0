"""Frozen facts and their names: no I/O, no clock.

Everything that crosses a boundary of this project (page, journal, evidence, case, verdict) is one
of these structs. Times called ``*_ns`` are CLOCK_MONOTONIC nanoseconds, comparable between the
processes of one host; times called ``*_at`` are ISO 8601 UTC strings.
"""
