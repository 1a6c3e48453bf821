"""All that relies on the insides of PySpark: its workers' processes, their output, and the handler of Ctrl-C.

`tests/pipeline/spark/worker/test_assumptions.py` looks for each assumption in the PySpark that is installed.
"""
