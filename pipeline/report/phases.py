"""The phases of an application's life, shared by tables and plots."""

PHASES = ("saving", "admission", "scheduling", "launching", "running", "finishing")
"""In chronological order."""
