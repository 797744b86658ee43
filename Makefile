# A friendly front of CMake: `make help` lists what it can do.
#
# PRESET=debug builds another preset; CMAKE_ARGS=-DFSDP_CUDA=OFF passes options on; PREFIX=... says where to install.

PRESET ?= release
PREFIX ?= /usr/local
BENCH ?= comm
JOBS ?= $(shell nproc)
CMAKE_ARGS ?=

# .venv has a CMake of its own where the system's is too old.
CMAKE = $(or $(wildcard .venv/bin/cmake),cmake)
CTEST = $(or $(wildcard .venv/bin/ctest),ctest)
# Tests start processes of their own, so few run at once.
TEST_JOBS ?= $(shell test $(JOBS) -gt 1 && echo 2 || echo 1)
RUN_TESTS = --output-on-failure --no-tests=error -j $(TEST_JOBS)

IN_CI = $(if $(CI),ON,OFF)
configure = $(CMAKE) --preset $(1) -DFSDP_WERROR=$(IN_CI) -DFSDP_STRICT_TESTS=$(IN_CI) $(CMAKE_ARGS) >build/$(1).configure.log || \
  { cat build/$(1).configure.log; exit 1; }; grep -e '-- fsdp:' build/$(1).configure.log
configure_and_build = $(configure); \
  $(CMAKE) --build build/$(1) -j $(JOBS) $(addprefix --target ,$(TARGET))

.PHONY: help
help: ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' Makefile | awk -F'|' '{printf "  make %-14s %s\n", $$1, $$2}'

.PHONY: setup
setup: ## Install what is missing: system packages, and LibTorch in .venv
	@scripts/setup

.PHONY: setup-peers
setup-peers: ## Make the environment we compare with (whole PyTorch, Open MPI), outside the clone
	@scripts/setup-peers

.PHONY: build
build: setup ## Build everything, or TARGET=...; binaries in build/<preset>/bin, and build/bin for release
	@$(call configure_and_build,$(PRESET))
	@if [ $(PRESET) = release ]; then ln -sfn release/bin build/bin; fi

.PHONY: quickstart
quickstart: ## Set up, build, train a small GPT for a minute on two ranks, go on with three, write text and a report
	@$(MAKE) --no-print-directory build PRESET=release TARGET="fsdp_app fsdp_worker"
	@rm -rf build/quickstart
	build/bin/fsdp train --config examples/quickstart.yaml --run build/quickstart --set training.max_steps=500
	build/bin/fsdp train --config examples/quickstart.yaml --run build/quickstart --resume --devices 3
	build/bin/fsdp generate build/quickstart --prompt "The model " --temperature 0.5
	build/bin/fsdp report build/quickstart
	@echo
	@echo "Next: open build/quickstart/report.html in a browser."
	@echo "      build/bin/fsdp config --example >config.yaml    a file of your own; docs/training.md explains it"
	@echo "      build/bin/fsdp train                            trains what it says"

.PHONY: cuda
cuda: ## Build the cuda preset: as release, and CUDA must be there
	@$(MAKE) --no-print-directory build PRESET=cuda

.PHONY: test
test: format-check build ## Check the format, build, and run all tests that need no peer and no GPU
	$(CTEST) --test-dir build/$(PRESET) $(RUN_TESTS) -LE 'peer|gpu|long'

.PHONY: test-peers
test-peers: build setup-peers ## Run the tests that compare with PyTorch and Open MPI
	$(CTEST) --test-dir build/$(PRESET) $(RUN_TESTS) -L peer

.PHONY: test-gpu
test-gpu: build ## Run the tests that need a GPU
	$(CTEST) --test-dir build/$(PRESET) $(RUN_TESTS) -L gpu

.PHONY: test-long
test-long: build ## Run the long tests
	FSDP_LONG=1 $(CTEST) --test-dir build/$(PRESET) $(RUN_TESTS) --verbose -L long

.PHONY: test-asan
test-asan: setup ## Run the tests under the address and undefined behaviour sanitizers
	@$(call configure_and_build,asan)
	ASAN_OPTIONS=detect_leaks=1:detect_stack_use_after_return=1:strict_string_checks=1 \
	UBSAN_OPTIONS=print_stacktrace=1 LSAN_OPTIONS=suppressions=$(CURDIR)/tests/sanitizers/lsan.supp:print_suppressions=0 \
	$(CTEST) --test-dir build/asan $(RUN_TESTS) -LE 'peer|gpu|long|meta|example'

# Address space randomisation of newer kernels is more than gcc 12's thread sanitizer can take.
NO_ASLR = $(shell setarch -R true 2>/dev/null && echo setarch -R)

ctest_tsan = TSAN_OPTIONS=suppressions=$(CURDIR)/tests/sanitizers/tsan.supp:die_after_fork=0:history_size=7 \
  $(NO_ASLR) $(CTEST) --test-dir build/tsan $(RUN_TESTS) -LE 'peer|gpu|long|meta|example'

.PHONY: test-tsan
test-tsan: setup ## Run the tests under the thread sanitizer
	@$(call configure_and_build,tsan)
	$(ctest_tsan)

# The sanitizer sees into threads of ours: not into gloo, and another instruction set shows it nothing new.
.PHONY: test-tsan-comm
test-tsan-comm: TARGET = unit_tests conformance_tests behaviour_tests
test-tsan-comm: setup ## Run the tests of comm and plan under the thread sanitizer; build only these
	@$(call configure_and_build,tsan)
	$(ctest_tsan) -R '^(unit[.](comm|nccl|plan)|conformance[.](Local|Shm)|behaviour[.](comm_faults|slots))'

# Of the format version that is not released yet: what older versions wrote is kept.
.PHONY: checkpoint-corpus
checkpoint-corpus: ## Write the checkpoint that tests keep of the current format version again
	@$(MAKE) --no-print-directory build TARGET=write_corpus
	rm -rf tests/corpus/checkpoint-v2
	build/$(PRESET)/bin/write_corpus tests/corpus/checkpoint-v2

# libFuzzer comes with clang.
.PHONY: fuzz-files
fuzz-files: ## Fuzz the parsers of checkpoint files with clang's libFuzzer, FUZZ_SECONDS=600 each
	@scripts/setup clang-14=clang++-14
	@$(CMAKE) -S tests/fuzz_files -B build/fuzz-files -DCMAKE_CXX_COMPILER=clang++-14 >/dev/null
	@$(CMAKE) --build build/fuzz-files -j $(JOBS)
	@tests/fuzz_files/run

.PHONY: bench
bench: build ## Run a benchmark: make bench BENCH=comm
	bench/run $(BENCH)

.PHONY: format
format: ## Format our C++ files with clang-format 14
	@scripts/format

.PHONY: format-check
format-check: setup ## Fail when a file is not formatted
	@scripts/format --check

# One version of clang-tidy, so that it finds the same everywhere. It reads how files are compiled; nothing is built.
.PHONY: setup-lint
setup-lint:
	@scripts/setup clang-tidy-14=clang-tidy-14
	@$(call configure,tidy)

# How many files lint-changed checks at most: about five minutes on two cores.
LINT_MOST ?= 30

.PHONY: lint
lint: setup-lint ## Run clang-tidy over include/, src/ and models/
	@scripts/lint --jobs $(JOBS)

.PHONY: lint-changed
lint-changed: setup-lint ## Run clang-tidy over what differs from main or, on main, from the commit before
	@scripts/lint --changed --most $(LINT_MOST) --jobs $(JOBS)

.PHONY: install
install: ## Build and install library, models, trainer, headers, CMake package and command: make install PREFIX=...
	@$(MAKE) --no-print-directory build TARGET="fsdp fsdp_models fsdp_app fsdp_train fsdp_worker"
	$(CMAKE) --install build/$(PRESET) --prefix $(PREFIX)

.PHONY: clean
clean: ## Remove all that was built; .venv stays
	rm -rf build
