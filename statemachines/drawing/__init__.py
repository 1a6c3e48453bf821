"""Drawings of state machines as SVG, and the style sheet that the report and the web pages share."""
