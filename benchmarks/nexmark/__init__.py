"""Nexmark for Structured Streaming: an auction house's events and the queries over them; see this folder's README."""
