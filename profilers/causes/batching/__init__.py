"""What sharing a batch costs."""
