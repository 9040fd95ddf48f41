# llmc: build, test, install. `make help` lists the targets.
# CROSS=aarch64-linux-gnu: build for that system into build/aarch64 (tools/deps.sh --cross aarch64).
CROSS     ?=
ifneq ($(CROSS),)
CC        := $(CROSS)-gcc
AR        := $(CROSS)-ar
BUILD     ?= build/$(firstword $(subst -, ,$(CROSS)))
PKG_CONFIG := PKG_CONFIG_LIBDIR=/usr/lib/$(CROSS)/pkgconfig pkg-config
endif
PKG_CONFIG ?= pkg-config
CC        ?= gcc
BUILD     ?= build
# Normalise BUILD, so that .d files name each object by one path however make was called.
override BUILD := $(patsubst $(CURDIR)/%,%,$(BUILD))
PREFIX    ?= /usr/local
DESTDIR   ?=
CFLAGS    ?= -O2 -g
WARN      := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith -Wvla -Werror
# Decoders of images, each optional: make IMAGE_PKGS= builds none of them.
has        = $(shell $(PKG_CONFIG) --exists $(1) 2>/dev/null && echo $(1))
IMAGE_PKGS := $(call has,libjpeg) $(call has,libpng) $(call has,libwebp)
IMAGE_FLAGS = $(if $(strip $(IMAGE_PKGS)),$(shell $(PKG_CONFIG) --cflags $(IMAGE_PKGS))) $(if $(filter libjpeg,$(IMAGE_PKGS)),-DLLMC_HAVE_JPEG) $(if $(filter libpng,$(IMAGE_PKGS)),-DLLMC_HAVE_PNG) $(if $(filter libwebp,$(IMAGE_PKGS)),-DLLMC_HAVE_WEBP)
IMAGE_STATIC = $(if $(strip $(IMAGE_PKGS)),$(filter-out -lm -lpthread,$(shell $(PKG_CONFIG) --static --libs $(IMAGE_PKGS) 2>/dev/null)))
PKGS      := yaml-0.1 jansson libpcre2-8 libutf8proc $(IMAGE_PKGS)
CPPFLAGS_ := -I. -Iinclude -Itemplates -D_GNU_SOURCE $(shell $(PKG_CONFIG) --cflags $(filter-out $(IMAGE_PKGS),$(PKGS)) 2>/dev/null)
CFLAGS_   := -std=gnu11 -fPIC -fvisibility=hidden -ffp-contract=off $(WARN)
# RISC-V without Zabha has no atomic instructions for bytes: the compiler calls libatomic
LIBS      := $(shell $(PKG_CONFIG) --libs $(PKGS) 2>/dev/null) -lm -lpthread -ldl \
	$(if $(filter riscv%,$(shell $(CC) -dumpmachine)),-latomic)
SAN       ?=
COUNTERS  ?=
COMMA     := ,
VERSION   := $(shell sed -n 's/^\#define LLMC_VERSION "\(.*\)"/\1/p' include/llmc.h)

MODULES := base hub formats ops plan ref text text/jinja grammar image \
	compiler $(addprefix compiler/,spec build fuse template emit shard import) \
	runtime $(addprefix runtime/,kv sample draft weights build threads comm state cpu cuda engine) \
	quant api serve $(addprefix serve/,http dialects models batch pages)
SRC   := $(sort $(foreach d,$(MODULES),$(wildcard $(d)/*.c)))
OBJ   := $(SRC:%.c=$(BUILD)/%.o) $(BUILD)/embed.o
CLI   := $(sort $(wildcard cli/*.c))
CLIO  := $(CLI:%.c=$(BUILD)/%.o)
UNIT  := $(patsubst tests/unit/%.c,$(BUILD)/unit/%,$(sort $(wildcard tests/unit/test_*.c)))
EMBED := $(shell find configs templates -name '*.yaml' -o -name '*.txt' -o -name '*.jinja' -o -name '*.c.in' -o -name '*.cu' -o -name '*.cu.in' -o -name '*.head' -o -name '*.h' 2>/dev/null) $(wildcard serve/pages/assets/* cli/*.html cli/*.1)

.PHONY: all lib help deps demo gpu-pack gpu-check nvrtc check check-all mutants check-build check-times check-steady coverage quick san san-build san-programs tsan tsan-build fuzz bench bench-peer bench-ranks bench-startup soak golden format install release release-tarball release-deb release-wheel clean unit smollm2
all: $(BUILD)/generated $(BUILD)/llmc $(BUILD)/libllmc.so $(BUILD)/libllmc.a $(BUILD)/expand $(BUILD)/reference $(BUILD)/cached_cc $(BUILD)/pixels

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile emu/emu.mk | expand -t 24

$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS_) $(CFLAGS_) $(CFLAGS) $(SAN) $(COUNTERS) -MMD -MP -c $< -o $@

# Modules that no fuzzer aims at: libFuzzer's counters at each check of UBSan make the loops of
# numerical code four times as slow.
UNCOUNTED := ref runtime/engine runtime/kv runtime/sample runtime/draft runtime/threads runtime/comm runtime/state runtime/cuda quant cli tests/unit
$(patsubst %.c,$(BUILD)/%.o,$(wildcard $(UNCOUNTED:%=%/*.c))): override COUNTERS :=

# These sums need not be bit-exact: allow fused multiply-add.
$(BUILD)/quant/rank_update.o: override CFLAGS += -O3 -ffp-contract=fast
$(BUILD)/quant/gram.o: override CFLAGS += -O3
# Loops of scale searches run faster unrolled.
$(BUILD)/formats/block_quantize.o $(BUILD)/formats/block_store.o: override CFLAGS += -O3

# Build these again when a decoder's library has been installed or removed.
IMAGE_OBJ := $(patsubst %.c,$(BUILD)/%.o,$(wildcard image/*.c))
$(IMAGE_OBJ) $(BUILD)/tests/unit/test_memory.o: override CPPFLAGS_ += $(IMAGE_FLAGS)
$(IMAGE_OBJ): $(BUILD)/image/flags
$(BUILD)/image/flags: always
	@mkdir -p $(@D)
	@echo "$(IMAGE_FLAGS)" | cmp -s - $@ || echo "$(IMAGE_FLAGS)" > $@
.PHONY: always
always:

# Generated files in the source tree, written only if they differ from their sources.
$(BUILD)/generated: include/llmc.h serve/fields.def serve/field_routes.def $(addprefix tools/,sampling_options.py request_fields.py serving_doc.py)
	@mkdir -p $(@D)
	@python3 tools/sampling_options.py
	@python3 tools/serving_doc.py --fields
	@touch $@

$(BUILD)/embed.c: $(EMBED) tools/embed.py tools/sampling_options.py include/llmc.h
	@python3 tools/embed.py $@
	@touch $@

$(BUILD)/embed.o: $(BUILD)/embed.c
	$(CC) $(CPPFLAGS_) $(CFLAGS_) $(SAN) -c $< -o $@

# Make would delete objects that only a pattern rule names.
.SECONDARY: $(UNIT:$(BUILD)/unit/%=$(BUILD)/tests/unit/%.o) $(patsubst %.c,$(BUILD)/%.o,$(wildcard tests/fuzz/*.c tests/kernels/*.c))

# The archive has the objects unmodified, because tests also call internal functions of the library.
$(BUILD)/libllmc.a: $(OBJ)
	@rm -f $@
	$(AR) rcs $@ $^

$(BUILD)/libllmc.so: $(OBJ)
	$(CC) -shared -Wl,-soname,libllmc.so.0 -Wl,-z,defs $(SAN) $(if $(findstring address,$(SAN)),-shared-libsan) $^ -o $@ $(LIBS)

$(BUILD)/llmc: $(CLIO) $(BUILD)/libllmc.a
	$(CC) $(SAN) $(CLIO) $(BUILD)/libllmc.a -o $@ $(LIBS)

$(BUILD)/unit/%: $(BUILD)/tests/unit/%.o $(BUILD)/libllmc.a
	@mkdir -p $(@D)
	$(CC) $(SAN) $^ -o $@ -lcmocka $(LIBS)

# fuzz_client includes two files of the command
$(BUILD)/fuzz/fuzz_client: $(filter-out %/main.o %/load_generator.o %/settings.o,$(CLIO))

$(BUILD)/fuzz/fuzz_placement: $(filter-out %/main.o,$(CLIO))

# libFuzzer has its own main function.
$(BUILD)/fuzz/%: $(BUILD)/tests/fuzz/%.o $(BUILD)/libllmc.a
	@mkdir -p $(@D)
	$(CC) $(SAN) -fsanitize=fuzzer $(filter %.o,$^) $(filter %.a,$^) -o $@ $(LIBS)

# Programs that expand kernels, run the reference and compile kernels, for tests.
$(BUILD)/expand $(BUILD)/reference $(BUILD)/cached_cc: $(BUILD)/%: $(BUILD)/tests/kernels/%.o $(BUILD)/libllmc.a
	$(CC) $(SAN) $^ -o $@ $(LIBS)

# Linked statically so that the test can replace malloc in the library and its dependencies.
$(BUILD)/unit/test_memory: LIBS := -Wl,-Bstatic -lyaml -ljansson -lpcre2-8 -lutf8proc $(IMAGE_STATIC) -Wl,-Bdynamic -lm -lpthread -ldl \
	$(patsubst %,-Wl$(COMMA)--wrap=%,malloc calloc realloc free strdup strndup aligned_alloc posix_memalign VP8LHuffmanTablesAllocate)

# Program for the tests of images.
$(BUILD)/pixels: $(BUILD)/tests/image/pixels.o $(BUILD)/libllmc.a
	$(CC) $(SAN) $^ -o $@ $(LIBS)

lib: $(BUILD)/libllmc.a
unit-%: $(BUILD)/unit/%
	$<

unit: ## build and run the C unit tests
	@tools/check.py unit

deps: ## install what building and testing needs (Debian packages, with root or sudo)
	@tools/deps.sh

smollm2: ## fetch the demo model (92 MB) into the cache and print its path
	@tools/smollm2.sh

demo: ## install, build, fetch SmolLM2, compile it and generate an answer
	@tools/demo.sh

check: ## the test suite, with a sample of each wide sweep; docs/testing.md
	@tools/check.py

check-all: ## the same with every case: each allocation failing, kernels in each type, goldens on each target
	@LLMC_CHECK_ALL=1 tools/check.py
	@$(MAKE) --no-print-directory mutants

mutants: all emu-lib ## plant the bugs of tests/mutants/mutants.toml one at a time and print the test that catches each; MUTANTS_ARGS="--hole 13"
	@"$$(tools/venv.sh)/bin/python" tests/mutants/run.py $(MUTANTS_ARGS)

quick: ## checks for daily work: unit and repository tests, one golden model per op and target
	@tools/check.py --quick

check-times: ## seconds of each step, item and test file in the last runs
	@tools/check.py --times

coverage: ## unit, text, kernel, end-to-end and server tests with counters: an HTML report, one line per module, functions that no test reaches; STEPS="unit pytest"
	@tools/coverage.py $(STEPS)

check-steady: ## find flaky tests: run the test steps N=5 times with two busy processes, and once with one thread
	@tools/check.py --steady $(or $(N),5) $(STEPS)

san: ## unit and end-to-end tests under ASan and UBSan
	@tools/check.py san

tsan: ## threads under TSan
	@tools/check.py tsan

fuzz: ## short deterministic fuzz runs over the stored corpus
	@tools/check.py fuzz

# Built by tools/check.py once per build type: plain, san and tsan.
check-build: all emu-lib emu-tests $(UNIT)

SAN_FLAGS := -fsanitize=address,undefined -fno-sanitize-recover=all
san-build: # clang, for unit tests, models and fuzzers
	+@$(MAKE) --no-print-directory BUILD=$(BUILD)/san CC="$(or $(SAN_CC),$(shell tools/clang.sh))" CFLAGS="-O1 -g1 -fno-omit-frame-pointer" SAN="$(SAN_FLAGS)" COUNTERS=-fsanitize=fuzzer-no-link san-programs

san-programs: $(BUILD)/llmc $(BUILD)/libllmc.so $(UNIT) $(patsubst tests/fuzz/%.c,$(BUILD)/fuzz/%,$(wildcard tests/fuzz/fuzz_*.c))

tsan-build:
	+@$(MAKE) --no-print-directory BUILD=$(BUILD)/tsan CFLAGS="-O1 -g1" SAN=-fsanitize=thread $(BUILD)/tsan/llmc $(BUILD)/tsan/unit/test_engine $(BUILD)/tsan/unit/test_serve_models $(BUILD)/tsan/unit/test_hostile_calls

bench: all ## tokens/s of the demo model on this machine
	$(BUILD)/llmc bench "$$(tools/smollm2.sh)"

bench-peer: all ## llmc and llama.cpp on the same files, interleaved; PEER_ARGS=--help, "--quick --isa v3", "--widths --quick --minutes 11"
	@tools/venv.sh >/dev/null && "$$(tools/venv.sh)/bin/python" tests/bench/peer.py $(PEER_ARGS)

bench-ranks: all ## decode with two ranks, two stages and one rank, interleaved; RANKS_ARGS=--help
	@python3 tests/bench/ranks.py "$$(tools/smollm2.sh)" $(RANKS_ARGS)

bench-startup: all ## time to the first token, cold and warm, and peak memory; MoE models and a dense one
	@"$$(tools/venv.sh)/bin/python" tests/bench/startup.py
	@"$$(tools/venv.sh)/bin/python" tests/bench/startup.py --moe

# Linked statically except for the C library, and without the web server: for machines that have
# neither the libraries nor a compiler.
$(BUILD)/gpu-llmc: $(filter-out %/cmd_serve.o,$(CLIO)) $(BUILD)/tests/gpu/no_server.o $(BUILD)/libllmc.a
$(BUILD)/gpu-expand: $(BUILD)/tests/kernels/expand.o $(BUILD)/libllmc.a
$(BUILD)/gpu-llmc $(BUILD)/gpu-expand:
	$(CC) $^ -o $@ -Wl,-Bstatic -lyaml -ljansson -lpcre2-8 -lutf8proc $(IMAGE_STATIC) -Wl,-Bdynamic -lm -lpthread -ldl

gpu-pack: all $(BUILD)/gpu-llmc $(BUILD)/gpu-expand $(BUILD)/emu/t_sm90 ## pack into build/gpu what gpu-check needs on a machine without build tools
	@BUILD=$(BUILD) tests/gpu/pack.sh

gpu-check: all ## tests and figures on the GPU of this machine, ten minutes; result file under tests/gpu/results; GPU_ARGS="--only figures"
	@BUILD=$(BUILD) tests/gpu/check.sh $(GPU_ARGS)

nvrtc: all ## every kernel of every description through the real NVRTC, for every architecture; writes tests/gpu/results/cuda-resources.md
	@LLMC="$(abspath $(BUILD))/llmc" "$$(tools/venv.sh)/bin/python" tools/cuda_resources.py --markdown tests/gpu/results/cuda-resources.md $(filter-out %pretokenizers.yaml,$(wildcard configs/*.yaml))

soak: all ## run every kind of client against a server for ten minutes; SOAK_SECONDS=60
	@"$$(tools/venv.sh)/bin/python" tests/serve/soak.py $(or $(SOAK_SECONDS),600)

golden: ## regenerate the goldens (needs torch and transformers; see tests/golden/README.md)
	@tests/golden/make.sh

format: ## clang-format over C, headers and templates, ruff over Python
	@tools/venv.sh >/dev/null && "$$(tools/venv.sh)/bin/python" tools/format.py

# One object with only the public names visible, so that a program's own names cannot clash with
# internal ones.
$(BUILD)/install/libllmc.a: $(OBJ)
	@mkdir -p $(@D)
	ld -r $^ -o $(BUILD)/install/llmc.o
	objcopy --localize-hidden $(BUILD)/install/llmc.o
	@rm -f $@
	$(AR) rcs $@ $(BUILD)/install/llmc.o

# Program that writes man pages and completions; for a cross build this must be a program of this
# machine.
HOST_LLMC ?= $(BUILD)/llmc

install: all $(BUILD)/install/libllmc.a ## header, libraries, pkg-config file, man pages, shell completions and llmc under PREFIX
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/lib/pkgconfig $(DESTDIR)$(PREFIX)/include
	HOST_LLMC="$(HOST_LLMC)" tools/install_pages.sh $(DESTDIR)$(PREFIX)/share
	install -m 755 $(BUILD)/llmc $(DESTDIR)$(PREFIX)/bin/llmc
	install -m 644 include/llmc.h $(DESTDIR)$(PREFIX)/include/llmc.h
	install -m 755 $(BUILD)/libllmc.so $(DESTDIR)$(PREFIX)/lib/libllmc.so.$(VERSION)
	ln -sf libllmc.so.$(VERSION) $(DESTDIR)$(PREFIX)/lib/libllmc.so.0
	ln -sf libllmc.so.0 $(DESTDIR)$(PREFIX)/lib/libllmc.so
	install -m 644 $(BUILD)/install/libllmc.a $(DESTDIR)$(PREFIX)/lib/libllmc.a
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@VERSION@|$(VERSION)|' -e 's|@PKGS@|$(PKGS)|' tools/llmc.pc.in > $(DESTDIR)$(PREFIX)/lib/pkgconfig/llmc.pc

# One release file per architecture in build/release/dist, with SBOM and SHA256SUMS; docs/release.md.
release-tarball release-deb release-wheel: release-%:
	@python3 tools/release/release.py $* $(RELEASE_ARGS)

release: ## tarballs, Debian packages and Python wheels for x86-64 and AArch64; RELEASE_ARGS="--arch x86_64"
	@python3 tools/release/release.py all $(RELEASE_ARGS)

clean: ## remove what was built
	rm -rf $(BUILD) generated

-include $(OBJ:.o=.d) $(CLIO:.o=.d) $(wildcard $(BUILD)/tests/*/*.d)

include emu/emu.mk
