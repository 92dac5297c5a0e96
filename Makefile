# Everything a person or a CI machine does with moesaic. CMakePresets.json holds the configurations themselves.
SHELL := /bin/sh
.DEFAULT_GOAL := help
CCACHE := $(shell command -v ccache)
ifneq ($(CCACHE),)
export CMAKE_C_COMPILER_LAUNCHER := $(CCACHE)
export CMAKE_CXX_COMPILER_LAUNCHER := $(CCACHE)
endif
PREFIX ?= /usr/local
PYTHON ?= python3
ALL_GPUS ?= OFF
MODEL ?= dummy:gpt-oss-20b,layers=4

.PHONY: help setup build test demo bench load clients tidy format install package wheel clean

help:  ## this list
	@sed -n 's/^\([a-z0-9]*\):[^#]*## \(.*\)/make \1\t\2/p' Makefile | expand -t 16

setup:  ## install by apt what building and testing need (asks for nothing; skips what is there)
	@tools/setup.sh build test

build:  ## build/release/apps/moesaic
	@tools/setup.sh build
	@mkdir -p build && cmake --preset release -DMOESAIC_ALL_GPUS=$(ALL_GPUS) >build/configure.log 2>&1 || { cat build/configure.log; exit 1; }
	@cmake --build build/release --target moesaic

test: setup  ## release, address and thread sanitizers, fuzzing, aarch64 under qemu, clang-format, clang-tidy
	@tools/check_all.sh

demo:  ## a first look: builds for this machine alone, CUDA only with a GPU (some 3 minutes on 2 cores without), asks the bundled model
	@tools/demo.sh

bench: build  ## pp/tg benchmark: make bench MODEL=path
	@build/release/apps/moesaic bench -m $(MODEL)

load: build  ## the server under load, minutes: tests/load/load.py (LOAD="streams memory faults scaling")
	@MOESAIC=build/release/apps/moesaic python3 -B tests/load/load.py $(LOAD)

clients: build  ## openai, openai-agents, litellm, langchain .. from PyPI against the server, minutes (CLIENTS="litellm llm", LATEST=1)
	@MOESAIC=build/release/apps/moesaic LATEST=$(LATEST) nice -n 5 python3 -B tests/client/ecosystem/run.py $(CLIENTS)

tidy: setup  ## clang-tidy over everything
	@tools/check_tidy.sh

format:  ## clang-format over everything
	@git ls-files --cached --others --exclude-standard -- '*.h' '*.cpp' '*.cc' '*.cu' '*.cuh' | xargs clang-format -i

install: build  ## into PREFIX (/usr/local): program, library, headers, bundled model, pages (docs/user/deployment.md)
	@cmake --build build/release --target moesaic_whole pages
	@cmake --install build/release --prefix $(PREFIX)

package: build  ## build/release/packages: Debian packages (where there is dpkg) and a .tar.gz (ALL_GPUS=ON: as a release)
	@tools/setup.sh package
	@cmake --preset release -DMOESAIC_ALL_GPUS=$(ALL_GPUS) >build/configure.log 2>&1 || { cat build/configure.log; exit 1; }
	@cmake --build build/release --target moesaic_whole pages
	@cd build/release && { cpack -B packages >../package.log 2>&1 || { cat ../package.log; exit 1; }; }
	@rm -rf build/release/packages/_CPack_Packages && ls -l build/release/packages

wheel:  ## build/wheels: the Python package, with CUDA where there is nvcc; auditwheel checks its tag (PYTHON=python3.12)
	@tools/setup.sh build test
	@PYTHON=$(PYTHON) MOESAIC_ALL_GPUS=$(ALL_GPUS) tools/make_wheel.sh

clean:  ## remove build/
	@rm -rf build
