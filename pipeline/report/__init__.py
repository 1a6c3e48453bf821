"""The report over a journal: digests of its rows, tables made of them, and the page that shows them. No Spark here."""
