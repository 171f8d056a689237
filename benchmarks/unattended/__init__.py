"""An online rescheduler that is left alone: events strike, and nobody looks or orders.

``python -m benchmarks.unattended --seed N --json FILE`` runs one script in every way. `script` draws the events, and
`run` runs one way on the testbed with known truth (:mod:`benchmarks.live.service`), in one of them with the orders of
`oracle`. `results` has the record, `figures` how soon a way reacts to an event and what that costs over the best
possible, and `page` the page and its timelines.
"""
