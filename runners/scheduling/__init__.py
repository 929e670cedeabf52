"""Who is let in, in which order, in which batch, on which replica."""
