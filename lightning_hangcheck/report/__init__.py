"""Facts to text: each renderer takes a verdict and gives a string; none reads, asks or prints."""
