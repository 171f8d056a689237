"""The demo: two stateful queries over a year of real flights, rebalanced while they run."""
