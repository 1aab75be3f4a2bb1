# `make install`, `make demo`, `make test` each work on a machine that has only Python 3.11, make and a C compiler.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
EXTRAS := cli,plot,report,sklearn,docs,dev

.PHONY: install demo test lint types unit quick bench attack figures results pictures docs lock clean

install: $(VENV)/installed

# Reproducible: exact versions come from constraints.txt; pyproject.toml only holds lower bounds. Of 11,000 modules a
# quarter is ever imported, and compiled then.
$(VENV)/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt --editable '.[$(EXTRAS)]'
	touch $@

demo: install
	$(BIN)/bilevax demo --report build/demo.html

# Types and documentation take one core each.
test: lint
	$(MAKE) --jobs 2 types docs
	$(MAKE) unit

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/pyright

unit: install
	$(BIN)/pytest -n 2 --dist worksteal

# All but the tests that are marked as slow: less than two minutes.
quick: install
	$(BIN)/pytest -n 2 --dist worksteal -m 'not slow'

# Hours, with everything; ARGS='--quick --only step dense' takes a part of it. pip install '.[bench]' brings the others.
ARGS :=

bench: install
	$(BIN)/python benchmarks/all.py $(ARGS)

# Hard problems and an independent judge; nothing may be wrong. FAMILY=qp,units picks families, CASE=3 a single case.
N := 1000
SEED := 0
FAMILY :=
CASE :=
WORKERS := 2

attack: install
	$(BIN)/python -m attack --cases $(N) --seed $(SEED) --family '$(FAMILY)' --workers $(WORKERS) $(if $(CASE),--case $(CASE))

# All figures of the documentation anew: half an hour. What they say is written into the documents by `make results`.
figures: install
	$(BIN)/bilevax reproduce all --output docs/figures

results: install
	$(BIN)/python docs/results.py

# The pictures of the gallery and of the README, drawn by the pages themselves.
pictures: install
	$(BIN)/python docs/pictures.py

# Needs no network. A warning is an error: a link or a reference that leads nowhere ends the build.
docs: install
	$(BIN)/sphinx-build --fresh-env --fail-on-warning --keep-going --nitpicky --quiet docs build/docs
	@echo 'build/docs/index.html'

lock:
	$(BIN)/python -m pip freeze --exclude-editable > constraints.txt

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis
