"""What the machine allows a process: control groups, and room for what we start in a rank."""
