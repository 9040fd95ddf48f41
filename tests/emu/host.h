/* Helpers for the emulator's tests. They call the emulated libraries through dlopen and dlsym, like
 * a program that uses CUDA. */
#ifndef TESTS_EMU_HOST_H
#define TESTS_EMU_HOST_H

#include "emu/cuda_api.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void *cuda_lib, *nvrtc_lib;
static int failures;

static void *
sym(void *lib, const char *name)
{
	void *p = dlsym(lib, name);
	if (!p) {
		fprintf(stderr, "no symbol %s\n", name);
		exit(2);
	}
	return p;
}
#define CU(name, ...) (((CUresult(*)(__VA_ARGS__))sym(cuda_lib, #name)))
#define RTC(name, ...) (((nvrtcResult(*)(__VA_ARGS__))sym(nvrtc_lib, #name)))

#define CHECK(cond)                                                                                \
	do {                                                                                       \
		if (!(cond)) {                                                                     \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #cond);                 \
			failures++;                                                                \
		}                                                                                  \
	} while (0)
#define OK(call)                                                                                   \
	do {                                                                                       \
		CUresult ok_ = (call);                                                             \
		if (ok_) {                                                                         \
			fprintf(stderr, "%s:%d: %s gave %d\n", __FILE__, __LINE__, #call, ok_);    \
			failures++;                                                                \
		}                                                                                  \
	} while (0)

static inline void
libs_open(void)
{
	const char *dir = getenv("EMU_DIR");
	char path[4096];

	const char *cuda = getenv("EMU_CUDA"), *nvrtc =
	                                           /* names the real libraries, to run the tests
	                                            * that do not need the emulator on a GPU */
	                                       getenv("EMU_NVRTC");
	snprintf(path, sizeof path, "%s/libcuda.so.1", dir ? dir : "build/emu");
	cuda_lib = dlopen(cuda ? cuda : path, RTLD_NOW | RTLD_LOCAL);
	snprintf(path, sizeof path, "%s/libnvrtc.so.13", dir ? dir : "build/emu");
	nvrtc_lib = dlopen(nvrtc ? nvrtc : path, RTLD_NOW | RTLD_LOCAL);
	if (!cuda_lib || !nvrtc_lib) {
		fprintf(stderr, "%s\n", dlerror());
		exit(2);
	}
}

static inline void
device_open(void)
{
	CUcontext c;
	OK(CU(cuInit, unsigned)(0));
	OK(CU(cuDevicePrimaryCtxRetain, CUcontext *, CUdevice)(&c, 0));
	OK(CU(cuCtxSetCurrent, CUcontext)(c));
}

static inline char *
read_text(const char *path)
{
	FILE *f = fopen(path, "rb");
	char *s = calloc(1, 1 << 18);
	if (!f || !fread(s, 1, (1 << 18) - 1, f)) {
		fprintf(stderr, "cannot read %s\n", path);
		exit(2);
	}
	fclose(f);
	return s;
}

/* Returns the compiled image, or NULL and the compiler's log in *log. */
static inline char *
compile(const char *source, const char *name, const char *arch, const char *define, char **log)
{
	nvrtcProgram p;
	char option[64], *image = NULL;
	const char *opt[] = { option, "--std=c++17", "-Itemplates", define };
	size_t n;

	snprintf(option, sizeof option, "--gpu-architecture=%s", arch);
	if (RTC(nvrtcCreateProgram, nvrtcProgram *, const char *, const char *, int,
	        const char *const *, const char *const *)(&p, source, name, 0, NULL, NULL))
		exit(2);
	int r = RTC(nvrtcCompileProgram, nvrtcProgram, int, const char *const *)(p, define ? 4 : 3,
	                                                                         opt);
	RTC(nvrtcGetProgramLogSize, nvrtcProgram, size_t *)(p, &n);
	*log = malloc(n);
	RTC(nvrtcGetProgramLog, nvrtcProgram, char *)(p, *log);
	if (!r) {
		RTC(nvrtcGetCUBINSize, nvrtcProgram, size_t *)(p, &n);
		image = malloc(n);
		RTC(nvrtcGetCUBIN, nvrtcProgram, char *)(p, image);
	}
	RTC(nvrtcDestroyProgram, nvrtcProgram *)(&p);
	return image;
}

static inline CUmodule
module(const char *path, const char *define)
{
	char *log, *text = read_text(path), *image = compile(text, path, "sm_90a", define, &log);
	CUmodule m = NULL;

	if (!image) {
		fprintf(stderr, "%s", log);
		exit(2);
	}
	OK(CU(cuModuleLoadData, CUmodule *, const void *)(&m, image));
	free(text);
	free(image);
	free(log);
	return m;
}

static inline CUfunction
function(CUmodule m, const char *name)
{
	CUfunction f = NULL;
	OK(CU(cuModuleGetFunction, CUfunction *, CUmodule, const char *)(&f, m, name));
	return f;
}

static inline CUdeviceptr
device(size_t n)
{
	CUdeviceptr p = 0;
	OK(CU(cuMemAlloc_v2, CUdeviceptr *, size_t)(&p, n));
	return p;
}

static inline CUresult
up(CUdeviceptr d, const void *s, size_t n)
{
	return CU(cuMemcpyHtoD_v2, CUdeviceptr, const void *, size_t)(d, s, n);
}

static inline CUresult
down(void *d, CUdeviceptr s, size_t n)
{
	return CU(cuMemcpyDtoH_v2, void *, CUdeviceptr, size_t)(d, s, n);
}

static inline CUresult
sync_all(void)
{
	return CU(cuCtxSynchronize, void)();
}

enum { COOPERATIVE = 1, PDL = 2, CLUSTER2 = 4 };

/* Launches f with one parameter: a struct or a pointer. */
static inline CUresult
launch(CUfunction f, unsigned grid, unsigned block, unsigned dyn, CUstream s, int flags, void *arg)
{
	CUlaunchAttribute a[3];
	CUlaunchConfig c = { grid, 1, 1, block, 1, 1, dyn, s, a, 0 };
	void *params[] = { arg };

	memset(a, 0, sizeof a);
	if (flags & COOPERATIVE)
		a[c.numAttrs].id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE,
		a[c.numAttrs++].value.cooperative = 1;
	if (flags & PDL)
		a[c.numAttrs].id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
		a[c.numAttrs++].value.programmaticStreamSerializationAllowed = 1;
	if (flags & CLUSTER2)
		a[c.numAttrs].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
		a[c.numAttrs].value.clusterDim.x = 2, a[c.numAttrs].value.clusterDim.y = 1,
		a[c.numAttrs++].value.clusterDim.z = 1;
	return CU(cuLaunchKernelEx, const CUlaunchConfig *, CUfunction, void **,
	          void **)(&c, f, params, NULL);
}

static inline CUstream
stream(void)
{
	CUstream s = NULL;
	OK(CU(cuStreamCreate, CUstream *, unsigned)(&s, CU_STREAM_NON_BLOCKING));
	return s;
}

static inline const char *
report(void)
{
	return ((const char *(*)(void))sym(cuda_lib, "emu_last_report"))();
}

#endif
