"""The phases of an application's life, which tables and plots have in common."""

PHASES = ("saving", "admission", "scheduling", "launching", "running", "finishing")
"""What an application goes through, in this order."""
