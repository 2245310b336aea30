# Every target sets up what it needs: a virtual environment in .venv, pinned by constraints.txt.
PYTHON  ?= python3
WORKERS ?= 2
ARGS    ?=

BIN   := .venv/bin
READY := .venv/.ready
PIP   := $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help setup demo play chromium page test fast lint format bench fuzz examples reproduce results figures site wheel pins clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' Makefile

setup: $(READY)  ## make .venv and install gtmsm into it

demo: $(READY)  ## train a small world model and watch it remember
	@$(BIN)/gtmsm demo $(ARGS)

play: $(READY)  ## walk in it: a page for your browser, with the weights that are shipped
	@$(BIN)/gtmsm play $(ARGS)

# One thread per worker: two workers on two cores that each start two threads are slower than one.
test fast bench fuzz page site: export OMP_NUM_THREADS = 1
page site: export GTMSM_BROWSER = chromium
test fast fuzz examples: export MPLBACKEND = Agg
# Also where the environment says otherwise: compiled once, the tests and what they start load in half the time.
unexport PYTHONDONTWRITEBYTECODE

test: $(READY)  ## all tests, small trainings too
	@$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --benchmark-disable $(ARGS)

fast: $(READY)  ## the tests that train nothing
	@$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --benchmark-disable -m "not slow" $(ARGS)

# A browser cannot be fetched by pip: it is Debian's. Whoever may not install it is told how, and nothing fails.
chromium: $(READY)
	@command -v chromium >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && \
		echo "installing chromium (once)" && apt-get update -qq && apt-get install -y -qq chromium >/dev/null; } || true
	@if command -v chromium >/dev/null; then $(PIP) --no-build-isolation -e '.[browser]'; \
	else echo "no browser here, so nothing is tested in one; on Debian: apt install chromium"; fi

page: chromium  ## the page in a real browser: installs chromium where it may, keeps pictures in .page/
	@! command -v chromium >/dev/null || $(BIN)/python -m pytest tests/page/test_browser.py $(ARGS)

lint: $(READY)  ## style, types, and who imports whom
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(READY)  ## let ruff tidy up
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

# Without the checks of shapes that tests have: they would be timed, too.
bench: $(READY)  ## speed, as ratios against a reference in the same run
	@$(BIN)/python -m pytest benchmarks --benchmark-only -o addopts=--import-mode=importlib $(ARGS)

fuzz: $(READY)  ## thousands of wrong files and odd calls: docs/reliability.md
	@PYTHONPATH=tests $(BIN)/python -m fuzz $(ARGS)

examples: $(READY)  ## run every script in examples/
	@set -e; for script in $(sort $(wildcard examples/*.py)); do \
		echo "== $$script"; $(BIN)/python "$$script"; \
	done

reproduce: $(READY)  ## the table of rivals, controls and ablations at toy size, into reproduced/
	@$(BIN)/gtmsm reproduce --quick --device cpu $(ARGS)

results: $(READY)  ## docs/results.md and the tables, from the JSON files in docs/
	@MPLBACKEND=Agg $(BIN)/python docs/results.py

figures: $(READY)  ## the paper's figures with shipped weights, docs/paper-*.png
	@$(BIN)/python docs/figures.py

site: chromium  ## the documentation as a site, in site/; opens every page in chromium, as page does
	@$(PIP) --no-build-isolation -e '.[site]'
	@$(BIN)/python docs/build.py
	@! command -v chromium >/dev/null || $(BIN)/python -m pytest tests/test_site.py $(ARGS)

# The wheel is built from the sdist, as others do it, and used where there is no repository.
wheel: $(READY)  ## sdist and wheel, with the weights in it, in dist/; tries them in an empty folder
	@rm -rf dist && $(BIN)/python -m hatchling build -d dist -t sdist >/dev/null
	@set -e; work=$$(mktemp -d); trap 'rm -rf "$$work"' EXIT; \
	tar -xzf dist/*.tar.gz -C "$$work" --strip-components 1; mkdir "$$work/empty"; \
	(cd "$$work" && "$(CURDIR)/$(BIN)/python" -m hatchling build -d "$(CURDIR)/dist" -t wheel >/dev/null); \
	$(PIP) --no-deps --target "$$work/installed" dist/*.whl; \
	cd "$$work/empty"; export PYTHONPATH="$$work/installed"; gtmsm="$$work/installed/bin/gtmsm"; \
	"$$gtmsm" weights | grep -q "$$work/installed/gtmsm/weights"; \
	"$$gtmsm" imagine walk-strong --steps 10 --out walk.gif; \
	"$$gtmsm" demo --run demo; test -s demo/report.html
	@ls -l dist

# Not `uv lock`: its file would record addresses of registries. torch is held, its CUDA packages are cut.
pins:  ## renew constraints.txt (torch stays where it is)
	@set -e; work=$$(mktemp -d); trap 'rm -rf "$$work"' EXIT; \
	$(PYTHON) -m venv "$$work/venv"; "$$work/venv/bin/pip" install -qq uv; \
	printf 'hatchling\neditables\n' > "$$work/build.in"; grep '^torch==' constraints.txt > "$$work/held.txt"; \
	"$$work/venv/bin/uv" pip compile pyproject.toml "$$work/build.in" -c "$$work/held.txt" -o "$$work/all.txt" \
		--all-extras --python-version 3.11 --no-header --no-annotate --no-emit-find-links -q >/dev/null; \
	grep '^#' constraints.txt > "$$work/pins.txt"; \
	sed 's/+cpu//' "$$work/all.txt" | grep -vE '^(nvidia-|cuda-|triton)' >> "$$work/pins.txt"; \
	cp "$$work/pins.txt" constraints.txt

clean:  ## remove .venv and every cache, but not runs/
	@rm -rf .venv dist site .site .pytest_cache .mypy_cache .ruff_cache .hypothesis .fuzz .page .import_linter_cache .benchmarks
	@find src tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

$(READY): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "gtmsm needs Python 3.11 or newer; found no $(PYTHON)" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "gtmsm needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V 2>&1): make PYTHON=python3.11 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
		echo "$(PYTHON) cannot make virtual environments; on Debian: apt install python3-venv" >&2; exit 1; }
	@echo "setting up .venv (once; about a minute)"
	@$(PYTHON) -m venv .venv
	@$(PIP) hatchling editables
	@$(PIP) --no-build-isolation -e '.[dev,tensorboard,lab,own,minari,doom,minigrid,play,rl,atlas,pgserver,mamba,flip,torchrl]'
	@touch $@
