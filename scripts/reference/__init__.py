"""The parts of scripts/train_reference.py, one small module each."""
