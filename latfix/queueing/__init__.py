"""The runner's queue policy as a pure model, used by the engine, the forecast and the attribution."""
