"""A service behind an address: requests replayed over HTTP or gRPC at their times, seen from the client's side."""
