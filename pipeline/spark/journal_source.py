"""An earlier place of `register_journal`, which `pipeline.spark` offers now."""

from pipeline.spark.source.journal_source import register_journal

__all__ = ["register_journal"]
