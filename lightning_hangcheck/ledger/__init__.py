"""What ran, how long, what it cost, and what a restart would throw away."""
