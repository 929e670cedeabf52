"""``latfix backends``: the backends that can serve a model, their speed, and the agreement of their answers."""
