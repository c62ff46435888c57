# What the bindings share: where the C runtime is, and the libraries that examples and tests open.
#
# BUILD=folder says where things are built, MODELS=folder where the libraries are, PYTHON which Python exports them.

BINDINGS := $(patsubst %/,%,$(dir $(abspath $(lastword $(MAKEFILE_LIST)))))
ROOT := $(patsubst %/,%,$(dir $(BINDINGS)))
BUILD ?= $(CURDIR)/build
MODELS ?= $(BINDINGS)/build/models
IMAGE := $(BINDINGS)/example/seven.txt
CC ?= cc
CXX ?= c++

C_RUNTIME := $(BINDINGS)/c
C_SOURCES := $(wildcard $(C_RUNTIME)/src/*.c) $(wildcard $(C_RUNTIME)/src/*.h) $(C_RUNTIME)/include/tilewright.h
C_WARNINGS := -Wall -Wextra -Werror

.DEFAULT_GOAL := all
.PHONY: all test example clean models

# Compiled by the Tilewright of this checkout; the first time that installs it into .venv.
models: $(MODELS)/damaged

$(MODELS)/damaged: $(BINDINGS)/models.py
	@python="$(PYTHON)"; \
	if [ -z "$$python" ]; then $(MAKE) --no-print-directory -C $(ROOT) setup; python=$(ROOT)/.venv/bin/python; fi; \
	PYTHONPATH=$(ROOT)/src $$python $(BINDINGS)/models.py $(MODELS)
	@touch $@

$(BUILD):
	@mkdir -p $@
