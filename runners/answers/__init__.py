"""Answers of models side by side: what kind of output each is, how far apart two are, and when they agree."""
