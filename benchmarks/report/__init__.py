"""``docs/benchmarks.md``: one page from what the benchmarks measured."""
