"""The pipeline's subcommands of the `dispatcher` command. Importing this does not import pyspark."""

from pipeline.cli.doctor_command import doctor
from pipeline.cli.replay_command import replay
from pipeline.cli.report_command import report
from pipeline.cli.sweep_command import sweep
from pipeline.cli.yarn_command import yarn_log

__all__ = ["doctor", "replay", "report", "sweep", "yarn_log"]
