# Each target makes the virtual environment it needs; a second run reuses it. See `make help`.
PYTHON ?= python3
VENV ?= .venv
OUT ?= out
WORKERS ?= 2
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help demo test lint reader study bench clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.installed ## read the pictures that ship with the project, write out/report.html
	$(BIN)/mrope demo --out $(OUT)

test: lint ## lint, type check, then every test
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

lint: $(VENV)/.installed-test ## ruff and pyright
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

reader: $(VENV)/.installed ## train the reader that ships again, into out/reader
	$(BIN)/mrope reader train --seed 1

study: $(VENV)/.installed ## train small models to test published claims, hours, resumable, into out/studies
	$(BIN)/mrope study run --out $(OUT)/studies

bench: $(VENV)/.installed-test ## time positions, rotary, pixels and scans beside others, half an hour, into out/*.json
	$(BIN)/python benchmarks/positions.py --json $(OUT)/positions.json
	$(BIN)/python benchmarks/rotary.py --json $(OUT)/rotary.json
	$(BIN)/python benchmarks/patchify.py --json $(OUT)/patchify.json
	$(BIN)/python benchmarks/scan.py --json $(OUT)/scan.json
	$(BIN)/python benchmarks/scan_packing.py --json $(OUT)/scan_packing.json
	$(BIN)/python benchmarks/scan_ray.py --json $(OUT)/scan_ray.json

clean: ## remove the environment and everything that the targets wrote
	rm -rf $(VENV) $(OUT) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "mrope needs Python 3.10 or newer")'
	$(PYTHON) -m venv $(VENV) || { rm -f $@; exit 1; }

# The stamps are newer than pyproject.toml once an installation went through.
$(VENV)/.installed: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.installed-test: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --disable-pip-version-check --editable '.[test]'
	@touch $@ $(VENV)/.installed
