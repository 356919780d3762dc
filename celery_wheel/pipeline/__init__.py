"""The data pipeline: a store as a source and a sink of Spark, and jobs over scheduled, dispatched and executed tasks.

::

    session      a Java to run on, and a SparkSession: local, by spark-submit, or of a Spark Connect server
    spark_errors errors of celery-wheel, out of those of Spark
    source       the data source ``wheel``: read, write, stream; ``tables`` calls it
    jobs         functions from DataFrame to DataFrame, a module a job; ``cli`` runs them
    archive      the folder, and the runs of the jobs ``archive`` and ``compact``
    inputs       the options of jobs, and the tables and logs that they read
    task_rows    rows of any table as tasks to schedule
    cost_model   the work that a timing wheel has with a timer, in closed form: for the job ``tune``
    output       the folder of a job's results; ``plot`` draws its picture (``celery_wheel.results`` reads the folder)

Promises
    1. The same jobs run in local mode, by spark-submit on a cluster and over Spark Connect: nothing here uses the
       session's ``sparkContext``, RDDs or the JVM behind it.
    2. Executors need celery-wheel and its extra, and nothing of the project that owns the tasks.
    3. Reading takes no lock and writes nothing: a running scheduler does not wait for it.

Nothing here is needed to schedule or to dispatch, and nothing else of celery-wheel imports PySpark, an extra
(``pip install 'celery-wheel[spark]'``): the modules import it, not this package.
"""
