"""``latfix sweep``: replays at several loads, and the largest load that meets the objective."""
