"""Settings of the example project; every default suits ``make demo``.

From the environment: ``RUN_DIR`` (all files of a run), ``BROKER_URL``, ``DATABASE_URL`` (what the
wheel keeps), ``DATABASE_PATH`` or ``DJANGO_DATABASE_URL`` (what Django keeps: a file, or a database of PostgreSQL),
``SECRET_KEY``, ``ALLOWED_HOSTS`` (with commas between), ``WHEEL_METRICS`` (address of metrics and health).
"""

import os
from importlib.util import find_spec
from pathlib import Path

from django.core.management.utils import get_random_secret_key
from sqlalchemy import make_url

PROJECT = Path(__file__).resolve().parent.parent
RUN_DIR = Path(os.environ.get("RUN_DIR") or PROJECT.parent / ".run" / "demo").resolve()
RUN_DIR.mkdir(parents=True, exist_ok=True)


def _broker_url() -> str:
    """Return the broker's URL: the demo writes that of its own Redis into the run folder, for a second terminal."""
    left_by_demo = RUN_DIR / "broker-url"
    return os.environ.get("BROKER_URL") or (
        left_by_demo.read_text().strip() if left_by_demo.exists() else "redis://127.0.0.1:6379/0"
    )


SECRET_KEY = os.environ.get("SECRET_KEY") or get_random_secret_key()
DEBUG = False
ALLOWED_HOSTS = ["127.0.0.1", "localhost", *filter(None, os.environ.get("ALLOWED_HOSTS", "").split(","))]
ROOT_URLCONF = "config.urls"
INSTALLED_APPS = [
    "flights",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_wheel",  # one of the two lines that differ from a project without the wheel
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    # The image has it: gunicorn serves no static files, and the demo's server does.
    *(["whitenoise.middleware.WhiteNoiseMiddleware"] if find_spec("whitenoise") else []),
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
STATIC_URL = "static/"
WHITENOISE_USE_FINDERS = True
USE_TZ = True
TIME_ZONE = "UTC"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

if _django := os.environ.get("DJANGO_DATABASE_URL"):
    _url = make_url(_django)
    _database = {
        **{"ENGINE": "django.db.backends.postgresql", "NAME": _url.database, "HOST": _url.host or ""},
        **{"PORT": _url.port or "", "USER": _url.username or "", "PASSWORD": _url.password or ""},
    }
else:
    _database = {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("DATABASE_PATH") or RUN_DIR / "flights.sqlite3",
        "OPTIONS": {
            # Several worker processes write here: a writer waits for its turn instead of failing.
            "timeout": 20,
            "transaction_mode": "IMMEDIATE",
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL",
        },
    }
# A worker keeps its connection instead of opening one for each task.
DATABASES = {"default": {**_database, "CONN_MAX_AGE": None}}

CELERY_BROKER_URL = _broker_url()
CELERY_BEAT_SCHEDULER = "wheel"  # the other line that differs
CELERY_WHEEL_STORE = os.environ.get("DATABASE_URL") or f"sqlite:///{RUN_DIR / 'wheel.sqlite3'}"
CELERY_WHEEL_METRICS = os.environ.get("WHEEL_METRICS") or None
CELERY_WHEEL_LIMITS = {"airline": {"concurrency": 2}}  # the notices of one airline leave room for the others
CELERY_WHEEL_NAMESPACE = "flights"  # so that another wheel on a shared broker is left alone
CELERY_BEAT_SCHEDULE_FILENAME = str(RUN_DIR / "celerybeat-schedule")
CELERY_TASK_DEFAULT_QUEUE = "flights"  # so that no other worker of a shared broker takes these tasks
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
