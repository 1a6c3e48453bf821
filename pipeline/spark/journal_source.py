"""The former module of `register_journal`, kept for existing imports; import it from `pipeline.spark`."""

from pipeline.spark.source.journal_source import register_journal

__all__ = ["register_journal"]
