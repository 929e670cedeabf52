"""Everything that needs a GPU: ``python -m pytest benchmarks/gpu --out DIR``; see docs/gpu.md."""
