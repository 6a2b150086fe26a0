"""What is left of a job that is gone, read into facts: logs, stack dumps, flight records."""
