"""The service that the self-test replays: an ordinary workload that uses only the public interface."""
