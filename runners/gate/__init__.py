"""``latfix gate``: two services replayed in turns, on fresh processes, until the gates are decided."""
