"""Renders facts as text: each renderer turns a verdict into a string, without any I/O."""
