"""The report's plots: rows in, charts out, drawn as SVG."""
