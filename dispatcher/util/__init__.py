"""Helpers for several packages, none of which they import."""
