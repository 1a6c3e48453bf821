"""`dispatcher ps|status|top|stack`: inspect running daemons through the ops API behind their doors.

The commands need the extra `cli`, not `web`. Slow imports are inside the functions, to keep `dispatcher --help` fast.
"""
