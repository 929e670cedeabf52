"""Gates and comparisons: how often they are wrong, and how often they decide."""
