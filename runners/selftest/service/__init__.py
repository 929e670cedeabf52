"""The service that the self-test replays: an ordinary workload, used only through the published contract."""
