"""The read model of a running resource manager: what its pages, its REST API and its metrics show.

model        what they answer from, the loop's thread; `hangs` is what keeps it from being renewed
publisher    what the model is made of; the handler thread, and with `marks`, `published` and `operations` the only
             one here that touches its state
"""
