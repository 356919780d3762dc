"""The data pipeline: a store as a source and a sink of Spark, and jobs over scheduled, dispatched and executed tasks.

::

    session      a Java to run on, and a SparkSession; ``spark_errors``: our errors, out of those of Spark
    source       the data source ``wheel``: read, write, stream; ``tables`` calls it
    jobs         functions from DataFrame to DataFrame, a module a job; ``cli`` runs them, ``inputs`` reads for them
    archive      the folder, and the runs of the jobs ``archive``, ``compact`` and ``erase``
    output       the folder of a job's results; ``plot`` draws its picture (``celery_wheel.results`` reads the folder)

Promises: the jobs run in local mode, by spark-submit and over Spark Connect, since nothing here uses ``sparkContext``,
RDDs or the JVM. Executors need celery-wheel and its extra alone. Reading takes no lock and writes nothing. Nothing else
of celery-wheel imports PySpark, an extra (``celery-wheel[spark]``).
"""
