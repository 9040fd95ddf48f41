# Replacements of the CUDA driver and NVRTC, and their own tests. Included by the Makefile; BUILD is
# its build folder.
BUILD   ?= build
EMU     := $(BUILD)/emu
EMU_DIR := emu
EMU_CC  := $(CC) -std=gnu11 -O2 -g -fPIC -fvisibility=hidden -D_GNU_SOURCE -I. -Iinclude -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes \
	-Wpointer-arith -Werror -fomit-frame-pointer -mno-red-zone
EMU_SRC := $(wildcard $(EMU_DIR)/core/*.c $(EMU_DIR)/driver/*.c) $(EMU_DIR)/nvrtc/build.c $(EMU_DIR)/nvrtc/exports.c
EMU_OBJ := $(patsubst $(EMU_DIR)/%.c,$(EMU)/obj/%.o,$(filter-out %/kernel_mem.c,$(EMU_SRC)))
# library code that the emulator uses: the build cache and its dependencies
EMU_BASE := $(patsubst %,$(EMU)/obj/base/%.o,arena build_cache checksummed_file error file file_guard number program sha256 strbuf utf8)
EMU_INC := $(patsubst $(EMU_DIR)/device/%,$(EMU)/include/%,$(wildcard $(EMU_DIR)/device/*.h))
EMU_HDR := $(wildcard $(EMU_DIR)/*.h $(EMU_DIR)/*/*.h base/*.h)
EMU_LIB := $(EMU)/libcuda.so.1 $(EMU)/libnvrtc.so.13 $(EMU)/libnvrtc.so $(EMU)/libcublasLt.so.13 $(EMU)/libnccl.so.2 $(EMU)/kernel_mem.o $(EMU_INC)

.PHONY: emu emu-lib emu-tests
emu-lib: $(EMU_LIB)
emu-tests: $(patsubst tests/emu/%.c,$(EMU)/%,$(wildcard tests/emu/t_*.c))
emu: ## build the emulator of a GPU and run its tests
	@BUILD=$(BUILD) tests/emu/run.sh

$(EMU)/obj/%.o: $(EMU_DIR)/%.c $(EMU_HDR)
	@mkdir -p $(@D)
	$(EMU_CC) -c $< -o $@

$(EMU)/obj/base/%.o: base/%.c $(EMU_HDR)
	@mkdir -p $(@D)
	$(EMU_CC) -c $< -o $@

# part of the keys of cached objects, so built without debug information, which would contain the
# build folder
$(EMU)/obj/nvrtc/build.o: EMU_CC += -g0

$(EMU)/kernel_mem.o: $(EMU_DIR)/core/kernel_mem.c
	@mkdir -p $(@D)
	$(EMU_CC) -fno-builtin -g0 -c $< -o $@

$(EMU)/include/%.h: $(EMU_DIR)/device/%.h
	@mkdir -p $(@D)
	cp $< $@

$(EMU)/libcuda.so.1: $(EMU_OBJ) $(EMU_BASE)
	$(CC) -shared -Wl,-soname,libcuda.so.1 -Wl,-z,defs $^ -o $@ -lm -lpthread -ldl

$(EMU)/libnvrtc.so.13: $(EMU)/obj/nvrtc/nvrtc.o $(EMU)/obj/nvrtc/build.o $(EMU)/obj/nvrtc/exports.o $(EMU_BASE)
	$(CC) -shared -Wl,-soname,libnvrtc.so.13 -Wl,-z,defs $^ -o $@ -lm -lpthread -ldl

# They call the emulator's driver, so they search it in their own folder.
$(EMU)/libcublasLt.so.13: $(EMU)/obj/libs/cublaslt.o $(EMU)/libcuda.so.1
	$(CC) -shared -Wl,-soname,libcublasLt.so.13 -Wl,-z,defs -Wl,-rpath,'$$ORIGIN' $^ -o $@ -lm

$(EMU)/libnccl.so.2: $(EMU)/obj/libs/nccl.o $(EMU)/libcuda.so.1
	$(CC) -shared -Wl,-soname,libnccl.so.2 -Wl,-z,defs -Wl,-rpath,'$$ORIGIN' $^ -o $@ -lpthread

$(EMU)/libnvrtc.so: $(EMU)/libnvrtc.so.13
	ln -sf libnvrtc.so.13 $@

$(EMU)/t_%: tests/emu/t_%.c tests/emu/host.h $(EMU_DIR)/cuda_api.h
	@mkdir -p $(@D)
	$(CC) -std=gnu11 -O1 -g -D_GNU_SOURCE -Wall -Wextra -Wno-missing-field-initializers -Wshadow -Werror -I. -Itemplates $< -o $@ -lm -ldl -lpthread
