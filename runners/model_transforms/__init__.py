"""A module changed in place: precision, compilation, layout."""
