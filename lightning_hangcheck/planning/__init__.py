"""Estimates a model's memory and speed, and gradient accumulation; no torch, no clock."""
