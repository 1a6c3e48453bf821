"""`dispatcher top`: a daemon's numbers every second, in a terminal of 80 x 24 or more.

`watching` asks the daemon on a thread of its own, `state` keeps what is shown, `frame` makes the lines of it, and `app`
puts them on the screen with Textual, which only `app` imports.
"""
