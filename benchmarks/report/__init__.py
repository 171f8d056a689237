"""``docs/benchmarks.md``: one page from the figures of the benchmarks, and the tools of all generated pages."""
