# A fresh machine needs python3 (3.11 or later) and make. PYTHON picks another Python, VENV another environment.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# For tests/run.py; `make test TEST_ARGS=--help` lists them.
TEST_ARGS ?=

.PHONY: demo test test-long lint format messages bench bench-quick bench-growth bench-schema clean

# Real files, two workers, one of them killed. DIR=… picks the folder; DEMO_EXIT=1 ends instead of serving the admin.
demo: $(READY)
	DIR="$(DIR)" $(BIN)/python -m project.demo

# Every check, and the suite on each database that answers.
test: $(READY)
	$(BIN)/python tests/run.py $(TEST_ARGS)

test-long: $(READY)
	$(BIN)/python tests/run.py --long $(TEST_ARGS)

lint: $(READY)
	$(BIN)/python tests/run.py --checks-only

format: $(READY)
	$(BIN)/python -m ruff format .
	$(BIN)/python -m ruff check --fix .

# The catalogues of translations, brought up to date and compiled; needs gettext's tools.
messages: $(READY)
	$(BIN)/python manage.py makemessages -l de --no-obsolete --no-wrap --add-location file --ignore tests --ignore bench
	# A date changes at each run, and says nothing.
	sed -i '/^"POT-Creation-Date/d' workloads/locale/de/LC_MESSAGES/django.po project/locale/de/LC_MESSAGES/django.po
	$(BIN)/python manage.py compilemessages -l de --ignore '.*'

# BENCH_ARGS=… are the script's: see bench/README.md.
# Everything that docs/performance.md shows, and its tables made anew: about an hour and a half. With
# MARIADB=mysql://… the database that it names is measured too.
bench: $(READY)
	$(BIN)/python bench/rates.py --finished 1000000 --chart docs/performance.svg --document docs/performance.md $(BENCH_ARGS)
	$(BIN)/python bench/costs.py --document docs/performance.md
	$(BIN)/python bench/growth.py --document docs/performance.md
	$(BIN)/python bench/pickup.py --document docs/performance.md
	$(BIN)/python bench/databases.py --document docs/performance.md $(if $(MARIADB),--mariadb $(MARIADB))

# Under three minutes: this app beside four of its peers, a few seconds each, and what a workload costs the database.
bench-quick: $(READY)
	$(BIN)/python bench/rates.py --peers ours pgqueuer awa django_ox django_q2 --scale 0.25 --repeats 1 $(BENCH_ARGS)
	$(BIN)/python bench/costs.py --sizes 1 50

bench-growth: $(READY)
	$(BIN)/python bench/growth.py $(BENCH_ARGS)

bench-schema: $(READY)
	$(BIN)/python bench/schema.py $(BENCH_ARGS)

clean:
	rm -rf $(VENV) .reports .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis build *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or later is needed: make PYTHON=…"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet -r requirements.txt
	@touch $@
