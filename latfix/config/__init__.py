"""What people write: workload.toml, its profiles and model files, plan.toml; parsed and checked once."""
