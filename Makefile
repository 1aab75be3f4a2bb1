# `make install`, `make demo`, `make test` each work on a machine that has only Python 3.11, make and a C compiler.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
EXTRAS := cli,plot,report,sklearn,data,dev

.PHONY: install demo test lint types unit bench lock clean

install: $(VENV)/installed

# Reproducible: exact versions come from constraints.txt; pyproject.toml only holds lower bounds.
$(VENV)/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[$(EXTRAS)]'
	touch $@

demo: install
	$(BIN)/python -m bilevax.demo

test: lint types unit

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/pyright

unit: install
	$(BIN)/pytest

bench: install
	$(BIN)/python benchmarks/sflcb_step.py

lock:
	$(BIN)/python -m pip freeze --exclude-editable > constraints.txt

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis
