"""``latfix backends``: which backends can serve a model, how fast, and whether their answers agree."""
