"""Settings from the environment: SITE_FOLDER, SITE_DATABASE (postgresql://…, else a file), SITE_STORE, SITE_BROKER,
SITE_ROUTER, SITE_RESULTS, SITE_LANGUAGE, SITE_THEME: the app of a theme of the admin, and SITE_APPS: more apps, with
commas between."""

import os
from pathlib import Path

from sqlalchemy import make_url

FOLDER = Path(os.environ.get("SITE_FOLDER") or Path(__file__).resolve().parents[2] / ".run" / "site")
FOLDER.mkdir(parents=True, exist_ok=True)

SECRET_KEY = "of tests"  # noqa: S105
ALLOWED_HOSTS = ["127.0.0.1", "testserver"]
ROOT_URLCONF = "tests.kit.site.urls"
SESSION_COOKIE_AGE = 10 * 365 * 86_400  # tests stop the clock at times of their own
USE_TZ = True
TIME_ZONE = "Europe/Berlin"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
STATIC_URL = "static/"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

LANGUAGE_CODE = os.environ.get("SITE_LANGUAGE") or "en-us"

INSTALLED_APPS = [
    *filter(None, [os.environ.get("SITE_THEME")]),  # its templates go before the admin's
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_wheel",
    "django_wheel.once",
    *filter(None, os.environ.get("SITE_APPS", "").split(",")),
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
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

if given := os.environ.get("SITE_DATABASE"):
    url = make_url(given)
    DATABASES = {
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": url.database,
            "USER": url.username or "",
            "PASSWORD": url.password or "",
            "HOST": url.host or url.query.get("host", ""),
            "PORT": url.port or url.query.get("port", ""),
        }
    }
else:
    DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": FOLDER / "site.sqlite3"}}

DATABASE_ROUTERS = [os.environ["SITE_ROUTER"]] if "SITE_ROUTER" in os.environ else []

CELERY_BROKER_URL = os.environ.get("SITE_BROKER") or "memory://"
CELERY_BEAT_SCHEDULER = "wheel"
CELERY_BEAT_SCHEDULE_FILENAME = str(FOLDER / "beat")
CELERY_WHEEL_STORE = os.environ.get("SITE_STORE") or f"sqlite:///{FOLDER / 'wheel.sqlite3'}"
CELERY_WHEEL_PERIODIC = os.environ.get("SITE_PERIODIC") or "wheel"
CELERY_WHEEL_RESULTS = os.environ.get("SITE_RESULTS")
