"""The web view: a read-only page on the cluster.

`view_model` turns a `ControllerView` into a bounded document, which ``/api/view`` returns as JSON; `rendering` turns
the document into HTML, and `page` serves both. All files are in this package: no build step, no third party.
"""
