"""Assessment of Spark's own event logs, offline.

`files` finds and reads logs, `recording` folds one into batches and placements, `assessment` judges each query by the
controller's model, and `result` is the answer, which `page` turns into HTML.
"""
