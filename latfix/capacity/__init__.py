"""How much load a service can carry: replays, the simulation between them, and its errors."""
