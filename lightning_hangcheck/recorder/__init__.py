"""Runs in the training process: shows a sidecar what the rank does; never blocks training."""
