# Two commands do everything, from a fresh machine on:
#   make run     set up, fetch the default models, open the page on http://127.0.0.1:7860
#   make test    set up, fetch the default models and a browser, run every test
# Parts: make unit, make e2e, make lint, make bench, make clean.
#   make train   train the dates model that ships with tfviz anew, in about a quarter of an hour
# PYTHON=... names a Python 3.11 or 3.12 to use, JOBS=... the number of test processes.

VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip install --disable-pip-version-check $(if $(CI),--quiet)
APP_STAMP := $(VENV)/.installed-app
DEV_STAMP := $(VENV)/.installed-dev
AXE := $(VENV)/npm/node_modules/axe-core/axe.min.js
AXE_VERSION := 4.14.1
JOBS ?= 2

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help run test unit e2e lint bench train clean models browser axe

help:
	@sed -n '1,6s/^# *//p' Makefile

run: $(APP_STAMP)
	@$(PY) -m tfviz.sources.fetch || echo "Not every default model is on disk; the page says what is missing."
	$(PY) app.py

test: unit e2e

# One thread a process: two processes of two threads each are slower on two cores.
unit: $(DEV_STAMP) models
	OMP_NUM_THREADS=1 $(PY) -m pytest --ignore=tests/e2e --numprocesses=$(JOBS) --dist=loadfile

# Each process has its own app and browser, and one thread for the models.
e2e: $(DEV_STAMP) models browser axe
	OMP_NUM_THREADS=1 $(PY) -m pytest tests/e2e --numprocesses=$(JOBS) --dist=worksteal

lint: $(DEV_STAMP)
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	$(PY) -m mypy

bench: $(DEV_STAMP) models
	@for script in benchmarks/[!_]*.py; do echo "== $$script"; PYTHONPATH=. $(PY) $$script || exit 1; done

# One thread, so that the same seed gives the same weights; overwrites assets/models/dates/model.safetensors.
train: $(DEV_STAMP)
	$(PY) -m tfviz.training.train_dates

# Caches and test output. What took long to fetch stays: the environment (.venv) and the models (TFVIZ_CACHE).
clean:
	rm -rf build dist *.egg-info test-results .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -path ./$(VENV) -prune -o -name __pycache__ -prune -exec rm -rf {} +

# ---- the environment ----

RIGHT_VERSION := import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))

# A good environment is kept; one that is missing, broken or of another Python is made and filled again.
ifneq ($(shell $(PY) -c '$(RIGHT_VERSION)' 2>/dev/null && echo good),good)
.PHONY: $(PY) $(APP_STAMP) $(DEV_STAMP)
endif

# The first Python that really runs (a shim may be there and fail) and can make environments.
$(PY):
	@for python in $(if $(PYTHON),'$(PYTHON)',python3.12 python3.11 python3); do \
		if "$$python" -c 'import ensurepip; $(RIGHT_VERSION)' 2>/dev/null; then \
			echo "Making $(VENV) with $$("$$python" --version)"; \
			exec "$$python" -m venv --clear $(VENV); \
		fi; \
	done; \
	echo "tfviz needs Python 3.11 or 3.12 with its venv module (on Debian: apt install python3-venv)." >&2; \
	echo "Where it is not on PATH, name it: make run PYTHON=..." >&2; exit 1

$(APP_STAMP): requirements.txt | $(PY)
	@echo "Installing what the app needs; torch is the large part."
	@$(PIP) -r requirements.txt
	@touch $@

$(DEV_STAMP): requirements-dev.txt requirements.txt | $(PY)
	@echo "Installing what the app and its tests need; torch is the large part."
	@$(PIP) -r requirements-dev.txt
	@touch $(APP_STAMP) $@

models: $(DEV_STAMP)
	@$(PY) -m tfviz.sources.fetch

# The browser that is there; else Debian's (that part of it which draws no window: a sixth faster), with a font for
# Chinese; else the one that Playwright fetches.
browser: $(DEV_STAMP)
	@find_browser() { $(PY) -m tests.e2e.conftest; }; \
	find_browser && exit 0; \
	if [ "$$(id -u)" = 0 ]; then root=; else root="sudo -n"; fi; \
	if command -v apt-get >/dev/null && $$root true 2>/dev/null; then \
		echo "Installing chromium and fonts-noto-cjk with apt-get."; \
		install="$$root env DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes fonts-noto-cjk"; \
		$$root apt-get -qq update; \
		$$install chromium-headless-shell >/dev/null 2>&1 || $$install chromium >/dev/null; \
		find_browser && exit 0; \
	fi; \
	$(PY) -m playwright install chromium && find_browser && exit 0; \
	echo "There is no browser: install Chromium or Chrome, or set TFVIZ_CHROMIUM to its path." >&2; exit 1

# The accessibility checker. Its tests are skipped, saying why, where it cannot be had.
axe: $(DEV_STAMP)
	@test -f $(AXE) && exit 0; \
	if ! command -v npm >/dev/null; then \
		echo "There is no npm to fetch axe-core with; the accessibility tests are skipped."; exit 0; \
	fi; \
	npm install --prefix $(VENV)/npm --no-save --no-audit --no-fund --ignore-scripts --loglevel=error \
		axe-core@$(AXE_VERSION) || echo "axe-core could not be fetched; the accessibility tests are skipped."
