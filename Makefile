# The commands of this project. Each sets up what it needs in .venv, once per pyproject.toml.
PYTHON ?= python3
VENV   ?= .venv
ARGS   ?=
BASE   ?=
# A worker for each processor, which takes tests from the others when it has none left.
PARALLEL ?= -n auto --dist worksteal

BIN := $(VENV)/bin
SOURCES := $(shell find dynbatch -name '*.cu' -o -name '*.cuh' -o -name '*.c' -o -name '*.h')

.PHONY: help venv demo test test-changed test-cuda test-slow test-all check lint types layers wheel wheels install-check release-check docs site bench gpu-check format clean

help:
	@echo 'make demo    set up, then train the seq2seq example on CMUdict (1 to 4 minutes)'
	@echo 'make test    set up, then run the tests of what runs on a CPU (PyTorch is optional)'
	@echo 'make test-changed  run those nearest to what differs from main; BASE=HEAD~3: from there'
	@echo 'make test-cuda  run those of a GPU on a stand-in: kernels in a simulator, by g++; NVRTC'
	@echo 'make test-slow  run those of benchmarks and examples, and whole runs of commands, processes'
	@echo 'make test-all  all three, with all orders of threads, architectures, random graphs (an hour)'
	@echo 'make check   format, lint, strict types, import layers, wheel contents'
	@echo 'make wheels  wheels with compiled kernels for Linux, macOS and Windows, all made here by zig'
	@echo 'make install-check  sdist and wheel in an empty environment: commands, the demo, types (2 minutes)'
	@echo 'make release-check  the same, then a wheel with compiled kernels where no compiler is used'
	@echo 'make docs    run every code block of the pages, then build the site, build/docs/index.html'
	@echo '             (10 minutes; one page: make docs ARGS="guides/memory")'
	@echo 'make site    build the site alone'
	@echo 'make bench   time dynbatch beside PyTorch: make bench ARGS="tagger --batch 64"'
	@echo 'make gpu-check  on a machine with an NVIDIA GPU: tests, checks and measurements on it'
	@echo 'make format  let ruff and clang-format format the code, and sort the imports'
	@echo 'make clean   remove .venv and everything that was built'

venv: $(BIN)/pip

$(BIN)/pip:
	@PYTHON='$(PYTHON)' sh .ci/make_venv.sh '$(VENV)'

# One stamp per set of extras; editing pyproject.toml sets up anew.
$(VENV)/.ready-%: pyproject.toml | $(BIN)/pip
	@echo 'Installing dynbatch[$*] into $(VENV) ...'
	@$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[$*]'
	@touch $@

.PRECIOUS: $(VENV)/.ready-%

demo: $(VENV)/.ready-examples
	$(BIN)/python examples/seq2seq/train.py cmudict --limit 36000 --epochs 2 --embed 64 --hidden 128 \
	    --lr 4e-3 --checkpoint runs/demo.safetensors $(ARGS)
	@echo '$(BIN)/python examples/seq2seq/generate.py runs/demo.safetensors dynamic batching'

# Else each worker, and each process that a test starts, compiles every module anew.
test test-changed test-cuda test-slow test-all: export PYTHONDONTWRITEBYTECODE :=

test: $(VENV)/.ready-tests
	@$(BIN)/python -m pytest $(PARALLEL) $(ARGS)

test-changed: $(VENV)/.ready-tests
	@$(BIN)/python -m pytest --changed=$(BASE) $(PARALLEL) $(ARGS)

test-cuda test-slow: test-%: $(VENV)/.ready-tests
	@$(BIN)/python -m pytest --suite $* $(PARALLEL) $(ARGS)

test-all: $(VENV)/.ready-tests
	@$(BIN)/python -m pytest --all $(PARALLEL) $(ARGS)

check: lint types layers wheel

lint: $(VENV)/.ready-tests
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/clang-format --dry-run --Werror $(SOURCES)

types: $(VENV)/.ready-tests
	@$(BIN)/mypy

layers: $(VENV)/.ready-tests
	@$(BIN)/lint-imports --no-logo

wheel: $(VENV)/.ready-tests
	@rm -rf build/wheel
	@$(BIN)/pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir build/wheel .
	@$(BIN)/python .ci/check_wheel.py build/wheel/*.whl

# Wheels with compiled kernels, of all platforms, by zig: build/wheels. A minute of a processor each.
wheels: $(VENV)/.ready-wheels
	@rm -rf build/wheels
	@$(BIN)/python .ci/make_wheels.py build/wheels $(ARGS)

install-check: wheel
	@$(BIN)/python .ci/check_install.py build/wheel/*.whl

# What is published, as far as one machine can try it: the sdist, the pure wheel and its own.
release-check: $(VENV)/.ready-tests $(VENV)/.ready-wheels
	@rm -rf build/release
	@$(BIN)/python .ci/make_wheels.py build/release here
	@$(BIN)/python .ci/check_wheel.py build/release/*-py3-none-any.whl
	@$(BIN)/python .ci/check_install.py build/release/*-py3-none-any.whl build/release/*-py3-none-[!a]*.whl

docs: $(VENV)/.ready-docs
	@$(BIN)/python docs/blocks.py $(ARGS)
	@$(MAKE) --no-print-directory site

site: $(VENV)/.ready-docs
	@$(BIN)/python -m sphinx --jobs auto --quiet --fail-on-warning --nitpicky -c docs . build/docs
	@echo 'build/docs/index.html'

# Without ARGS: both workloads as the README quotes them.
bench: $(VENV)/.ready-peers
ifeq ($(strip $(ARGS)),)
	@$(BIN)/python -m benchmarks.run tagger --batch 64 --threads 2
	@$(BIN)/python -m benchmarks.run seq2seq --batch 64 --threads 2
else
	@$(BIN)/python -m benchmarks.run $(ARGS)
endif

# With the Python that has CuPy and PyTorch, and no .venv: nothing is installed or downloaded.
gpu-check:
	@$(PYTHON) -m benchmarks.gpu.check $(ARGS)

format: $(VENV)/.ready-tests
	@$(BIN)/ruff check --fix --quiet .
	@$(BIN)/ruff format .
	@$(BIN)/clang-format -i $(SOURCES)

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
