"""The runner's queue policy as a pure model, for the engine, the forecast and the attribution."""
