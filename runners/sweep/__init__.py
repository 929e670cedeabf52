"""latfix sweep: replays at several loads and what they show."""
