"""Programs and workers that benchmarks run in processes of their own."""
