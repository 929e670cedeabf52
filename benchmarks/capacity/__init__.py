"""The sweep: how often its interval contains the largest load."""
