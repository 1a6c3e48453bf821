"""`dispatcher ps|status|top|stack`: a look into running daemons through the ops API that their doors serve.

The commands need the extra `cli` and the standard library's HTTP client, not the extra `web`. Their modules import what
takes a while inside the commands, so that `dispatcher --help` stays quick.
"""
