"""A record laid out as units of work, with what each should have taken."""
