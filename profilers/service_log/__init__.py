"""A user's own service recorded while it serves: a row a request, sampled, in segments on a bounded disk."""
