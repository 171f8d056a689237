# Everything sets itself up first: `make demo` and `make test` work in a fresh clone with Python 3.11+ and make.

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.set-up
TOOLS := $(VENV)/.tools
# A Spark home that is set outside would be taken instead of the one in the virtual environment.
export PYTHON
unexport SPARK_HOME PYTHONHOME PYTHONPATH

.DEFAULT_GOAL := help
.PHONY: help setup tools demo bench bench-page chaos deb docs drills machines release soak soak-starts matrix test test-unit test-root test-full lint audit clean install uninstall

help: ## Show this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' Makefile

setup: $(STAMP) ## Make the virtual environment; find or install Java 17+

$(STAMP): pyproject.toml $(wildcard constraints.txt) .ci/setup.sh
	sh .ci/setup.sh $(VENV)
	touch $@

tools: $(TOOLS) ## What only tests call: systemd-analyze, Chromium, promtool

$(TOOLS): $(STAMP)
	sh .ci/setup.sh $(VENV) tools
	touch $@

demo: $(STAMP) ## Rebalance running queries onto nodes that join; JSON=FILE writes the figures, ARGS=... adds options
	$(BIN)/python -m examples.demo $(if $(JSON),--json "$(JSON)") $(ARGS)

bench: $(STAMP) ## Every benchmark (two days; ARGS=--quick: a day); writes docs/benchmarks.md, policies.md, migration.md, predictions.md, scale.md, unattended.md
	$(BIN)/python -m pip install --disable-pip-version-check -q $(if $(wildcard constraints.txt),-c constraints.txt) -e '.[bench]'
	$(BIN)/python -m benchmarks.policies --json out/policies.json --document docs/policies.md $(ARGS)
	$(BIN)/python -m benchmarks.migration --json out/migration.json --document docs/migration.md $(ARGS)
	$(BIN)/python -m benchmarks.forecast --json out/forecast.json $(ARGS)
	$(BIN)/python -m benchmarks.predictions --json docs/figures/predictions.json --document docs/predictions.md $(ARGS)
	-$(BIN)/python -m benchmarks.scale --json docs/figures/scale.json --document docs/scale.md $(ARGS)
	-$(BIN)/python -m benchmarks.unattended --seed 1 2 3 4 5 6 --json out/unattended.json --document docs/unattended.md # 12 hours and more
	-$(BIN)/python -m benchmarks.monitors --json out/monitors.json $(ARGS)
	-$(BIN)/python -m benchmarks.workloads --json out/workloads.json $(ARGS)
	-$(BIN)/python -m benchmarks.adoption --json out/adoption.json $(ARGS)
	-$(BIN)/python -m benchmarks.live --resume --json out/live.json --runs out/runs.json $(ARGS) # the page says what failed
	-$(BIN)/python -m benchmarks.nexmark --json out/nexmark.json $(ARGS)
	$(BIN)/python -m benchmarks.simulation --json out/simulation.json --live out/runs.json $(ARGS)
	$(BIN)/python -m benchmarks.report --live out/live.json --nexmark out/nexmark.json --simulation out/simulation.json --runs out/runs.json --keep docs/figures

bench-page: FIGURES = docs/figures
bench-page: $(STAMP) ## docs/benchmarks.md again, from the figures in docs/figures; nothing is measured
	$(BIN)/python -m pip install --disable-pip-version-check -q $(if $(wildcard constraints.txt),-c constraints.txt) -e '.[bench]'
	$(BIN)/python -m benchmarks.report --live $(FIGURES)/live.json --nexmark $(FIGURES)/nexmark.json --simulation $(FIGURES)/simulation.json $(if $(wildcard $(FIGURES)/notes.txt),--notes $(FIGURES)/notes.txt)

# What tests call beside Python and no package of the system brings: promtool.
test test-unit test-root test-full: export PATH := $(abspath $(VENV))/tools:$(PATH)

# Tests with Redis wait more than they work: twice as many processes as cores.
test: $(TOOLS) test-unit ## Every test that fits CI's time, on real Redis and real Spark
	$(BIN)/python -m pytest tests -m 'not slow and redis and not spark' -n $$($(BIN)/python -c 'import os; print(2 * os.cpu_count())') --dist worksteal
	$(BIN)/python -m pytest tests -m 'not slow and spark' --durations 15

test-unit: $(STAMP) ## Only the tests that need neither Redis nor Spark: a few minutes
	$(BIN)/python -m pytest tests -m 'not slow and not redis and not spark' -n logical --dist worksteal

test-root: $(TOOLS) ## As root: the tests of signals and of rights, which others skip or pass in another way
	$(BIN)/python -m pytest tests -m 'not slow and root' --durations 5 -rs

test-full: $(TOOLS) ## Every test, the long ones too (an hour); writes the matrix in docs/compatibility.md
	$(BIN)/python -m pytest tests
	$(BIN)/python -m tests.matrix.document

matrix: $(STAMP) ## Every minor version of Spark in a new environment (an hour); VERSIONS="4.0 4.2", JSON=FILE; writes docs/compatibility.md
	$(BIN)/python -m tests.versions $(if $(VERSIONS),--versions "$(VERSIONS)") --json "$(or $(JSON),out/versions.json)" --document docs/compatibility.md $(ARGS)

drills: $(STAMP) ## Every fault drill, load test and chaos (hours); writes docs/reliability.md; ARGS=... adds options
	sh .ci/setup.sh $(VENV) drills
	$(BIN)/python -m tests.drills --repeat $(or $(REPEAT),3) --json out/drills.json --document docs/reliability.md $(ARGS)

chaos: $(STAMP) ## Random faults on a real cluster for MINUTES=10, audited; SEED=n has the same ones come again
	$(BIN)/python -m tests.drills.chaos --minutes $(or $(MINUTES),10) $(if $(SEED),--seed "$(SEED)") $(if $(JSON),--json "$(JSON)") $(ARGS)

soak: $(STAMP) ## Two drivers, one with Rechannel, for HOURS=2, held to bounds; added to docs/figures/soak.json and docs/reliability.md
	$(BIN)/python -m tests.soak --hours $(or $(HOURS),2) --json "$(or $(JSON),docs/figures/soak.json)" --starts out/starts --document docs/reliability.md $(ARGS)

soak-starts: $(STAMP) ## 2,000 starts of a query in one driver short of descriptors, with and without Rechannel (40 minutes); out/starts-*.json
	mkdir -p out
	STARTS_JSON=$(abspath out/starts) $(BIN)/python -m pytest tests/soak/test_starts.py -m slow -s

machines: $(STAMP) ## Boot six Debian machines, install them by docs/services.md, break them (half an hour, as root); writes docs/machines.md
	sh .ci/setup.sh $(VENV) machines
	$(BIN)/python -m tests.machines --json docs/figures/machines.json --document docs/machines.md $(ARGS)

release: $(STAMP) ## Wheels and source archives in dist/, built twice and compared; nothing is uploaded (docs/release.md)
	$(BIN)/python .ci/release.py

deb: $(STAMP) ## Debian packages of the last commit in dist/deb; needs debhelper and python3-venv (docs/services.md)
	$(BIN)/python .ci/deb.py

lint: $(STAMP) ## ruff, mypy, import-linter, bandit and the audit of requirements
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/bandit --quiet -c pyproject.toml -r conf wire policies monitors migration daemon benchmarks examples .ci
	$(BIN)/python .ci/audit.py

audit: $(STAMP) ## Pinned requirements against the known vulnerabilities; AUDIT_REQUIRED=1: fail if it cannot be done
	$(BIN)/python .ci/audit.py

install: ## As root: program and systemd units; ROLE=agent: only what a node needs; PREFIX= DESTDIR= AGENT_USER=spark (docs/services.md)
	sh systemd/install.sh install

uninstall: ## As root: remove what install put there; PURGE=1: configuration, keys and audit file too
	sh systemd/install.sh uninstall

docs: $(STAMP) ## The documentation as a site in out/site; every warning is an error
	$(BIN)/python -m pip install --disable-pip-version-check -q $(if $(wildcard constraints.txt),-c constraints.txt) -e '.[docs]'
	$(BIN)/python -m mkdocs build --strict --quiet --site-dir out/site

clean: ## Remove the virtual environment and everything that was generated
	rm -rf $(VENV) build dist src/*.egg-info distributions/*/build distributions/*/src/*.egg-info out .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
