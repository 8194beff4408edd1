# dtrun: one Makefile for all folders.   make [all|test|test-full|gpu-test|gpu-bench|demo|lint|bench|bench-check|install|uninstall|dist|clean]
#   make SAN=address,undefined test     build and test with sanitizers, in a folder of its own
#   make test TESTS="store_table comm"  only some unit tests or stories
#   make CUDA=PREFIX                    the CUDA toolkit to build with (default: where nvcc is); make CUDA= builds without
#   make GPUS=90a                       for one kind of GPU alone, a third of the time
CC ?= gcc
SAN ?=
PREFIX ?= /usr/local
comma := ,
B := build$(if $(SAN),-$(subst $(comma),-,$(SAN)))
VERSION := 0.1.0

PKGS := libuv libcjson zlib libzstd libxxhash libsodium libpcre2-8 libutf8proc libpng libjpeg yaml-0.1
# Optional: requests to files of offloaded state (worker/engine/homes/transfer.c); without it threads make them. make URING= builds without.
URING ?= $(shell pkg-config --exists liburing 2>/dev/null && echo liburing)
PKG_CFLAGS := $(shell pkg-config --cflags $(PKGS) $(URING) 2>/dev/null)
PKG_LIBS := $(shell pkg-config --libs $(PKGS) $(URING) 2>/dev/null)
WARN := -Wall -Wextra -Werror -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wno-error=maybe-uninitialized -Wno-format-truncation
# No contraction: an update must not depend on where in a vector an element lies. Kernels ask for fma where they want it.
FLAGS := -std=gnu11 -O3 -g -fno-math-errno -ffp-contract=off -fno-omit-frame-pointer -pthread -D_GNU_SOURCE -DDT_VERSION='"$(VERSION)"' -I. \
         $(if $(SAN),-fsanitize=$(SAN) -fno-sanitize-recover=all -DDT_SANITIZED)
CFLAGS_ALL = $(FLAGS) $(WARN) $(PKG_CFLAGS) $(CFLAGS)
# The runtime is linked statically and loads the driver when it is first asked for something.
LIBS = -ldnnl $(PKG_LIBS) $(if $(NVCC),$(CUDA)/lib64/libcudart_static.a -lrt) -lm -ldl -pthread

# Where nvcc is there, its programs know the device "cuda"; tests run the same kernels on a CPU (tests/softgpu) and need the toolkit's headers only.
CUDA ?= $(firstword $(patsubst %/bin/nvcc,%,$(wildcard /usr/local/cuda/bin/nvcc) $(shell command -v nvcc 2>/dev/null)) \
        $(patsubst %/include/cuda_runtime.h,%,$(wildcard /usr/local/cuda/include/cuda_runtime.h)))
CUDA_HEADERS := $(if $(CUDA),$(wildcard $(CUDA)/include/cuda_runtime.h))
# Not in sanitizer builds: no sanitizer looks into what a GPU runs.
NVCC := $(if $(CUDA),$(if $(SAN),,$(wildcard $(CUDA)/bin/nvcc)))

# All rooms. kernels/cuda needs the toolkit; kernels/cpu/isa is compiled by rules of its own; cmd holds the programs' mains and, in folders, their parts.
FOLDERS := base base/gpu collectives kernels kernels/cpu $(if $(NVCC),kernels/cuda) $(sort $(patsubst %/,%,$(dir $(wildcard launcher/*/*.c launcher/*/*/*.c worker/*/*.c worker/*/*/*.c))))
# What needs no header of the toolkit is there in every build, for tests that need no GPU either.
NO_HEADERS := kernels/cuda/dnn.c kernels/cuda/dnn_graph.c kernels/cuda/dnn_plan.c kernels/cuda/attention_graph.c kernels/cuda/convolution_graph.c
MAINS := $(wildcard cmd/*.c cmd/*/main.c)
SOURCES := $(foreach d,$(FOLDERS),$(wildcard $(d)/*.c)) $(filter-out $(MAINS),$(wildcard cmd/*/*.c)) $(if $(NVCC),,$(NO_HEADERS))
# kernels/cpu/isa/*.c are compiled once per instruction set, with DT_ISA naming it; kernels/cpu chooses at run time.
ISA_SOURCES := $(wildcard kernels/cpu/isa/*.c)
# Once more for F16, but for what has no 16-bit type or only BF16.
F16_SOURCES := $(filter-out %/table.c %/gemm.c %/gemm_few.c %/activation_table.c,$(ISA_SOURCES))
ISA_plain :=
ISA_avx2 := -mavx2 -mfma -mf16c -mprefer-vector-width=256
ISA_avx512 := -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512
# And products once more for BF16, with dot products of pairs.
DOTS := $(B)/obj/kernels/cpu/isa/gemm.dots.o
CU_SOURCES := $(wildcard kernels/cuda/*.cu)
OBJECTS := $(SOURCES:%.c=$(B)/obj/%.o) $(foreach i,plain avx2 avx512,$(ISA_SOURCES:%.c=$(B)/obj/%.$(i).o) $(F16_SOURCES:%.c=$(B)/obj/%.$(i)_f16.o)) $(DOTS) $(if $(NVCC),$(CU_SOURCES:%.cu=$(B)/obj/%.cu.o))
PROGRAMS := $(patsubst cmd/%.c,$(B)/bin/%,$(MAINS:%/main.c=%.c))
# Unit tests lie in rooms like those of the source: tests/ROOM/unit_NAME.c -> build/tests/unit_NAME. No two share a name.
UNIT_SOURCES := $(foreach d,tests/* tests/*/* tests/*/*/*,$(wildcard $(d)/unit_*.c $(d)/unit_*.cu))
vpath unit_%.c $(sort $(dir $(UNIT_SOURCES)))
vpath unit_%.cu $(sort $(dir $(UNIT_SOURCES)))
SOFT_UNIT := $(basename $(filter unit_cuda_%.c unit_softgpu_%.c unit_softgpu_%.cu,$(notdir $(UNIT_SOURCES))))
UNIT := $(filter-out $(SOFT_UNIT:%=$(B)/tests/%),$(addprefix $(B)/tests/,$(basename $(notdir $(UNIT_SOURCES)))))
FUZZ := $(patsubst tests/fuzz/%.c,$(B)/fuzz/%,$(wildcard tests/fuzz/fuzz_*.c))
# Small helper programs of the stories: tests/tools/NAME.c -> build/tools/NAME
TOOLS := $(patsubst tests/tools/%.c,$(B)/tools/%,$(wildcard tests/tools/*.c)) $(B)/tools/nvml/libnvidia-ml.so.1 $(B)/tools/driver/libcuda.so.1
REWORDED := $(B)/tools/reworded/dtrun $(B)/tools/reworded/train
TOOLS += $(REWORDED)
HELPERS := $(patsubst %.c,$(B)/obj/%.o,$(wildcard tests/lib/*.c))

MANUAL := $(wildcard docs/man/*.1)

.PHONY: all programs unit fuzz tools setup test test-full gpu-test gpu-bench demo lint bench bench-check install uninstall dist clean
all: programs
programs: $(PROGRAMS)
unit: $(UNIT)
fuzz: $(FUZZ)
tools: $(TOOLS)

$(B)/obj/%.o: %.c Makefile
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) -MMD -MP -c $< -o $@
$(B)/obj/cmd/doctor/look_gpu.o: PKG_CFLAGS += $(if $(NVCC),-DDT_CUDA_TOOLKIT=$(shell sed -n 's/^.define CUDART_VERSION *//p' $(CUDA)/include/cuda_runtime_api.h))
$(B)/obj/worker/engine/homes/transfer.o: PKG_CFLAGS += $(if $(URING),-DDT_URING)
$(B)/obj/kernels/device.o: PKG_CFLAGS += $(if $(NVCC),-DDT_CUDA)
$(B)/obj/kernels/cuda/%.o: PKG_CFLAGS += -isystem $(CUDA)/include
# sm_80 also serves 8.6 and 8.9; what is none of these compiles the PTX when it is first used. What ptxas says of registers and spills is kept.
# No contraction here either: kernels call fmaf where they want it.
GPUS ?= 80 90a 100
comma := ,
NVCC_FLAGS := -std=c++17 -O3 -fmad=false -I. -lineinfo -compress-mode=size --threads 2 -Xptxas -v \
              $(foreach g,$(GPUS),-gencode arch=compute_$(g),code=$(if $(filter 80,$(g)),[sm_80$(comma)compute_80],sm_$(g))) \
              -Xcompiler -Wall,-Wextra,-Werror,-fno-strict-aliasing,-ffp-contract=off,-fno-exceptions,-fno-threadsafe-statics,-fno-omit-frame-pointer
$(B)/obj/%.cu.o: %.cu Makefile
	@mkdir -p $(@D)
	$(shell command -v ccache) $(NVCC) $(NVCC_FLAGS) -MMD -MP -MF $(@:.o=.d) -c $< -o $@ 2>$(@:.cu.o=.ptxas) || { cat $(@:.cu.o=.ptxas) >&2; exit 1; }
define isa_rule
$(B)/obj/%.$(1).o: %.c Makefile
	@mkdir -p $$(@D)
	$$(CC) $$(CFLAGS_ALL) $$(ISA_$(1)) -DDT_ISA=$(1) -MMD -MP -c $$< -o $$@
$(B)/obj/%.$(1)_f16.o: %.c Makefile
	@mkdir -p $$(@D)
	$$(CC) $$(CFLAGS_ALL) $$(ISA_$(1)) -DDT_ISA=$(1) -DDT_FOR_F16 -MMD -MP -c $$< -o $$@
endef
$(foreach i,plain avx2 avx512,$(eval $(call isa_rule,$(i))))
$(DOTS): $(B)/obj/%.dots.o: %.c Makefile
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $(ISA_avx512) -mavx512bf16 -DDT_ISA=avx512 -DDT_DOTS -MMD -MP -c $< -o $@
$(B)/libdtrun.a: $(OBJECTS)
	@rm -f $@
	@ar rcs $@ $^
# Names its objects, so that make does not take them for passing ones and remove them.
main_object = $(patsubst %.c,$(B)/obj/%.o,$(wildcard cmd/$(1).c cmd/$(1)/main.c))
.SECONDEXPANSION:
$(PROGRAMS): $(B)/bin/%: $$(call main_object,$$*) $(B)/libdtrun.a
	@mkdir -p $(@D)
	$(CC) $(FLAGS) $(LDFLAGS) -rdynamic -Wl,--as-needed $< $(B)/libdtrun.a $(LIBS) -o $@
$(B)/libsupport.a: $(HELPERS)
	@rm -f $@
	@ar rcs $@ $^
$(B)/tests/%: %.c $(B)/libsupport.a $(B)/libdtrun.a Makefile
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) -MMD -MP -MF $@.d $< $(B)/libsupport.a $(B)/libdtrun.a -Wl,--as-needed $(LIBS) -lcmocka -o $@
$(B)/fuzz/%: tests/fuzz/%.c tests/fuzz/driver.c $(B)/libdtrun.a
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) -MMD -MP -MF $@.d $< tests/fuzz/driver.c $(B)/libdtrun.a -Wl,--as-needed $(LIBS) -o $@
$(B)/tools/%: tests/tools/%.c $(B)/libsupport.a $(B)/libdtrun.a
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) -MMD -MP -MF $@.d $< $(B)/libsupport.a $(B)/libdtrun.a -Wl,--as-needed $(LIBS) -o $@
# dtrun and train with every sentence reworded (tests/reworded): they are to do the same.
$(REWORDED): $(B)/tools/reworded/%: $(B)/obj/cmd/%.o $(B)/obj/tests/reworded/error.o $(B)/obj/tests/reworded/cause.o $(B)/libdtrun.a
	@mkdir -p $(@D)
	$(CC) $(FLAGS) $(LDFLAGS) -rdynamic -Wl,--as-needed $^ $(LIBS) -o $@
# A driver's library that says what a test wants; stories find it by LD_LIBRARY_PATH.
$(B)/tools/nvml/libnvidia-ml.so.1: tests/softgpu/nvml.c base/gpu/gpu_visible.c base/gpu/gpu_visible.h base/gpu/nvml_abi.h Makefile
	@mkdir -p $(@D)
	$(CC) $(filter-out -fsanitize=%,$(CFLAGS_ALL)) -fvisibility=hidden -fPIC -shared tests/softgpu/nvml.c base/gpu/gpu_visible.c -o $@
	@ln -sf $(@F) $(@D)/libcuda.so.1
# The driver of a machine without a GPU, for tests that load libraries of CUDA.
$(B)/tools/driver/libcuda.so.1: tests/softgpu/driver_stub.c Makefile
	@mkdir -p $(@D)
	$(CC) -std=gnu11 -O2 $(WARN) -shared -fPIC -fvisibility=hidden -Wl,-soname,libcuda.so.1 $< -o $@

include tests/softgpu/softgpu.mk

setup:
	@sh scripts/setup.sh
# The packages may be missing until `setup` has run, so the build is a second make that looks for them again.
test: setup
	@$(MAKE) --no-print-directory -s programs unit fuzz tools
	@SAN=$(SAN) B=$(B) SOFTGPU=$(if $(CUDA_HEADERS),1) scripts/test.sh $(TESTS)
test-full: setup
	@scripts/test-full.sh $(TESTS)
# On a machine with a GPU (scripts/gpu.py): tests of kernels and training on it, with SAN=memcheck|racecheck|synccheck|initcheck under NVIDIA's checker;
# figures, in parts that go on where the last one ended.
gpu-test:
	@SAN= MAKEFLAGS= python3 scripts/gpu.py test $(if $(SAN),--tool $(SAN))
gpu-bench:
	@python3 scripts/gpu.py bench
$(B)/gpu/%: %.c $(B)/libsupport.a $(B)/libdtrun.a Makefile
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) -isystem $(CUDA)/include -MMD -MP -MF $@.d $< $(B)/libsupport.a $(B)/libdtrun.a -Wl,--as-needed $(LIBS) -lcmocka -o $@
demo: setup
	@$(MAKE) --no-print-directory -s programs
	@B=$(B) scripts/demo.sh
lint:
	@scripts/lint.sh
bench: programs
	@B=$(B) scripts/bench.sh
bench-check: programs
	@B=$(B) python3 scripts/bench_check.py
install: programs
	install -d "$(DESTDIR)$(PREFIX)/bin" "$(DESTDIR)$(PREFIX)/libexec/dtrun" "$(DESTDIR)$(PREFIX)/share/doc/dtrun" "$(DESTDIR)$(PREFIX)/share/man/man1"
	for p in dtrun dtdata dtckpt; do install -m 755 $(B)/bin/$$p "$(DESTDIR)$(PREFIX)/bin/$$p"; done
	for p in train bench doctor; do install -m 755 $(B)/bin/$$p "$(DESTDIR)$(PREFIX)/libexec/dtrun/$$p"; done
	install -m 644 $(wildcard README.md CHANGELOG.md) "$(DESTDIR)$(PREFIX)/share/doc/dtrun"
	install -m 644 $(MANUAL) "$(DESTDIR)$(PREFIX)/share/man/man1"
uninstall: # what install puts there, and its folders where nothing else lies in them
	for p in dtrun dtdata dtckpt; do rm -f "$(DESTDIR)$(PREFIX)/bin/$$p"; done
	for p in train bench doctor; do rm -f "$(DESTDIR)$(PREFIX)/libexec/dtrun/$$p"; done
	for p in $(wildcard README.md CHANGELOG.md); do rm -f "$(DESTDIR)$(PREFIX)/share/doc/dtrun/$$p"; done
	for p in $(notdir $(MANUAL)); do rm -f "$(DESTDIR)$(PREFIX)/share/man/man1/$$p"; done
	for d in libexec/dtrun share/doc/dtrun; do rmdir "$(DESTDIR)$(PREFIX)/$$d" 2>/dev/null || :; done
dist:
	git archive --format=tar.gz --prefix=dtrun-$(VERSION)/ -o dtrun-$(VERSION).tar.gz HEAD
clean:
	rm -rf build build-*

-include $(OBJECTS:.o=.d) $(HELPERS:.o=.d) $(MAINS:%.c=$(B)/obj/%.d) $(UNIT:=.d) $(FUZZ:=.d) $(TOOLS:=.d)
