"""A record laid out as units of work, with the expected time of each."""
