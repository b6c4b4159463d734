"""What tests of the pipeline say to Spark, in this process and in processes of their own."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.python.worker.faulthandler.enabled": "true",
    # A failing task is a failing test at once.
    "spark.task.maxFailures": "1",
    # Micro-batches of a test are many and small.
    "spark.sql.streaming.minBatchesToRetain": "10",
    "spark.log.level": "ERROR",
}
