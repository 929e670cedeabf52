"""Files that users write: workload.toml, its profiles and model files, plan.toml; parsed and checked once."""
