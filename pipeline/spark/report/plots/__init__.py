"""The report's plots: rows in, Plotly figures out."""
