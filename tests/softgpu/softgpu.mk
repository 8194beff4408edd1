# The software GPU: kernels/cuda/*.cu as host C++ and a fake CUDA runtime, linked into test programs in place of the real one.
# Included by the Makefile; without the toolkit's headers there is nothing to build, and these tests are skipped.
#
# Each sanitizer wants its own compiler and its own choice of what is watched:
#   address, undefined  everything by $(CXX); the executor without undefined
#   thread              clang 19 where it is there; executor and runtime are not watched, so that they order nothing by accident
CXX ?= g++
SOFT := $(B)/softgpu
SOFT_CXX := $(if $(findstring thread,$(SAN)),$(firstword $(shell command -v clang++-19 2>/dev/null) $(CXX)),$(CXX))
SOFT_FLAGS := -x c++ -std=c++17 $(if $(SAN),-O1,-O2) -g -Wall -Wextra -Werror -Wno-unused-function -Wno-unknown-pragmas -DDT_SOFTGPU -fno-strict-aliasing -ffp-contract=off -fno-math-errno \
              -fno-omit-frame-pointer -fno-exceptions -fno-rtti -fno-threadsafe-statics -pthread -D_GNU_SOURCE -I. -isystem $(CUDA)/include
SOFT_SAN := $(if $(SAN),-fsanitize=$(SAN) -fno-sanitize-recover=all -DDT_SANITIZED) $(if $(findstring thread,$(SAN)),-DSOFTGPU_TSAN)
SOFT_SAN_RUNTIME := $(if $(findstring address,$(SAN)),-fsanitize=address) $(if $(findstring thread,$(SAN)),-DSOFTGPU_TSAN)

SOFT_RUNTIME := $(patsubst %.cc,$(SOFT)/obj/%.o,$(wildcard tests/softgpu/*.cc))
# What stands in place of the production build's files of the same names.
SOFT_KERNELS := $(patsubst %,$(SOFT)/obj/%.o,$(basename $(wildcard kernels/cuda/*.c) $(wildcard kernels/cuda/*.cu)) kernels/device)
SOFT_PROGRAMS := $(if $(CUDA_HEADERS),$(SOFT_UNIT:%=$(B)/tests/%) $(SOFT)/train $(SOFT)/bench)
# NCCL as a library of its own, in three versions: one with all that we use, one without ncclCommSplit and what came later, one that is too old.
SOFT_NCCL := $(foreach v,22907 21700 21200,$(SOFT)/nccl/$(v)/libnccl.so.2)
unit: $(SOFT_PROGRAMS) $(if $(CUDA_HEADERS),$(SOFT_NCCL))
$(B)/tests/unit_cuda_nccl $(B)/tests/unit_cuda_nccl_alone $(SOFT)/train: | $(SOFT_NCCL)

$(SOFT)/nccl/%/libnccl.so.2: $(wildcard tests/softgpu/nccl/* tests/softgpu/*.h) collectives/nccl_abi.h Makefile tests/softgpu/softgpu.mk
	@mkdir -p $(@D)
	$(SOFT_CXX) $(SOFT_FLAGS) $(SOFT_SAN_RUNTIME) -fPIC -shared -DNCCL_FAKE_VERSION=$* $(wildcard tests/softgpu/nccl/*.cc) -o $@

$(SOFT)/obj/tests/softgpu/copies.o $(SOFT)/obj/tests/softgpu/dnn_run.o: SOFT_SAN_RUNTIME := $(SOFT_SAN)
$(SOFT)/obj/tests/softgpu/%.o: tests/softgpu/%.cc Makefile tests/softgpu/softgpu.mk
	@mkdir -p $(@D)
	$(SOFT_CXX) $(SOFT_FLAGS) $(SOFT_SAN_RUNTIME) -MMD -MP -c $< -o $@
$(SOFT)/obj/%.o: %.cu Makefile tests/softgpu/softgpu.mk
	@mkdir -p $(@D)
	$(SOFT_CXX) $(SOFT_FLAGS) $(SOFT_SAN) -MMD -MP -c $< -o $@
$(SOFT)/obj/%.o: %.c Makefile tests/softgpu/softgpu.mk
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) -DDT_CUDA -isystem $(CUDA)/include -MMD -MP -c $< -o $@
$(SOFT)/libsoftgpu.a: $(SOFT_RUNTIME)
	@rm -f $@
	@ar rcs $@ $^
# Objects in front, so that nothing of the real backend is taken from the library.
SOFT_LINK = $(SOFT_KERNELS) $(B)/libsupport.a $(B)/libdtrun.a -Wl,--whole-archive $(SOFT)/libsoftgpu.a -Wl,--no-whole-archive $(B)/libdtrun.a -Wl,--as-needed $(filter-out %cudart_static.a,$(LIBS))
$(B)/tests/%: %.cu $(SOFT_KERNELS) $(B)/libsupport.a $(B)/libdtrun.a $(SOFT)/libsoftgpu.a Makefile
	@mkdir -p $(@D)
	$(SOFT_CXX) $(SOFT_FLAGS) $(SOFT_SAN) -MMD -MP -MF $@.d -c $< -o $(SOFT)/obj/$*.o
	$(SOFT_CXX) $(SOFT_SAN) -rdynamic $(SOFT)/obj/$*.o $(SOFT_LINK) -lcmocka -o $@
$(patsubst %.c,$(B)/tests/%,$(filter unit_cuda_%.c unit_softgpu_%.c,$(notdir $(UNIT_SOURCES)))): $(B)/tests/%: \
		%.c $(SOFT_KERNELS) $(B)/libsupport.a $(B)/libdtrun.a $(SOFT)/libsoftgpu.a Makefile
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) -DDT_CUDA -isystem $(CUDA)/include -MMD -MP -MF $@.d -c $< -o $(SOFT)/obj/$*.o
	$(SOFT_CXX) $(SOFT_SAN) -rdynamic $(SOFT)/obj/$*.o $(SOFT_LINK) -lcmocka -o $@
$(SOFT)/train $(SOFT)/bench: $(SOFT)/%: $$(call main_object,$$*) $(SOFT_KERNELS) $(B)/libsupport.a $(B)/libdtrun.a $(SOFT)/libsoftgpu.a
	$(SOFT_CXX) $(SOFT_SAN) -rdynamic $< $(SOFT_LINK) -o $@

-include $(wildcard $(SOFT)/obj/*/*.d $(SOFT)/obj/*/*/*.d) $(SOFT_UNIT:%=$(B)/tests/%.d)
