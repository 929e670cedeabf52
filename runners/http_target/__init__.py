"""A service behind an address: requests replayed over HTTP at their recorded times, seen from the client's side."""
