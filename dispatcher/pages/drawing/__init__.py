"""Drawings of state machines as SVG. They need markupsafe, which comes with Jinja2, and nothing else."""
