"""The web view: a page that shows what the controller knows, and orders nothing. For people, in a browser.

`document` turns a `ControllerView` into plain bounded values (pure; also what ``/api/view`` answers), `rendering` turns
those into HTML, `page` answers requests. Everything is served from this package: no build step, no third party.
"""

from rechannel.daemon.web.page import routes

__all__ = ["routes"]
