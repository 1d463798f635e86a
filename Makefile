# The commands to know; the same at home and in CI. `make` alone lists them.
.DEFAULT_GOAL := help
.PHONY: help demo test check bench format clean system-git system-rabbitmq system-postgresql

PYTHON ?= python3
PYTEST_ARGS ?=
BENCH_ARGS ?=
# More workers than this wait for the one RabbitMQ node.
WORKERS ?= $(shell cores=$$(nproc 2>/dev/null || echo 2); [ $$cores -lt 8 ] && echo $$cores || echo 8)
export AMQP_URL ?=

BIN := .venv/bin
# Both variables hold the build tools to the same releases: older pips read the first, newer ones the second.
INSTALL := PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt \
	$(BIN)/pip install --quiet --no-input --disable-pip-version-check -c constraints.txt

help: ## show this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/\1|\2/p' Makefile | while IFS='|' read -r word text; do \
		printf '  make %-8s %s\n' "$$word" "$$text"; done

demo: .venv/runtime.stamp | system-git ## run the main job, in this process or over RabbitMQ (AMQP_URL=amqp://…)
	@if [ -n "$$AMQP_URL" ]; then set -- --amqp-url "$$AMQP_URL"; fi; $(BIN)/skillbus demo "$$@"

test: .venv/dev.stamp | system-git system-rabbitmq system-postgresql ## run every test, on a private RabbitMQ node (PYTEST_ARGS=…)
	$(BIN)/pytest -n $(WORKERS) --dist loadgroup $(PYTEST_ARGS)

check: .venv/dev.stamp ## check format, lint and types
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy

bench: .venv/dev.stamp | system-git system-rabbitmq ## measure calls per second and latency (BENCH_ARGS=…)
	$(BIN)/python -m tests.bench $(BENCH_ARGS)

format: .venv/dev.stamp ## put the source into its format, and mend what the linter can mend
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

clean: ## remove everything that these commands have made
	rm -rf .venv build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/dev.stamp: pyproject.toml constraints.txt | $(BIN)/pip
	$(INSTALL) -e '.[dev]'
	@touch .venv/dev.stamp .venv/runtime.stamp

.venv/runtime.stamp: pyproject.toml constraints.txt | $(BIN)/pip
	$(INSTALL) -e .
	@touch $@

$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Python 3.11 or newer is needed; name it with PYTHON=…" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || .ci/install python3-venv
	$(PYTHON) -m venv .venv

system-git:
	@command -v git >/dev/null || .ci/install git

system-rabbitmq:
	@[ -n "$${SKILLBUS_TEST_AMQP_URL:-}$${RABBITMQ_HOME:-}" ] || [ -x /usr/lib/rabbitmq/bin/rabbitmq-server ] \
		|| command -v rabbitmq-server >/dev/null || .ci/install rabbitmq-server

system-postgresql:
	@command -v initdb >/dev/null || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || .ci/install postgresql
