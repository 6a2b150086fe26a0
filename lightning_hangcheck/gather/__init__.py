"""Node evidence becomes one `Case`: who is there, who should be, and whose stacks are equal."""
