"""What a plan decided, in the configuration of servers that people run."""
