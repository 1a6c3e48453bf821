"""`dispatcher report --follow`: the report's tables kept up to date while the journal is written."""
