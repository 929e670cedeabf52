"""How much load a service bears: replays, the simulation between them, and its errors."""
