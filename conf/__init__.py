"""Typed settings and the example files that go with them. Plain values only: no sockets, no Spark, no clock."""
