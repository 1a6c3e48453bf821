"""Parses logs of Hadoop's YARN and MapReduce daemons into records. Independent of any engine."""

from pipeline.yarnlog.clock import LogClock, YarnLogError
from pipeline.yarnlog.files import log_files, read_log
from pipeline.yarnlog.log_formats import LogFormat
from pipeline.yarnlog.messages import Message
from pipeline.yarnlog.parser import Record, Unparsed, parse_lines
from pipeline.yarnlog.summary import (
    LogSummary,
    Mismatch,
    Missed,
    Reading,
    is_declared,
    mismatch,
    older_releases,
    summarize,
)

__all__ = [
    "LogClock",
    "LogFormat",
    "LogSummary",
    "Message",
    "Mismatch",
    "Missed",
    "Reading",
    "Record",
    "Unparsed",
    "YarnLogError",
    "is_declared",
    "log_files",
    "mismatch",
    "older_releases",
    "parse_lines",
    "read_log",
    "summarize",
]
