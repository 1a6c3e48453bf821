"""`dispatcher top`: a daemon's figures, refreshed every second, in a terminal of at least 60 x 16.

`watching` asks the daemon on its own thread, `state` holds what is shown, `frame` turns it into lines, and `app` puts
these on the screen. Only `app` imports Textual.
"""
