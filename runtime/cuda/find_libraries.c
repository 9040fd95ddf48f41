/* Finds the vendor's libraries. LLMC_CUDA_LIBDIR, if set, is the only folder; otherwise the
 * loader's own path comes first, then toolkits, then Python wheels. */
#include <dlfcn.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "runtime/cuda/cuda.h"

const char *const cuda_nvrtc_names[] = { "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2",
	                                 "libnvrtc.so.11", "libnvrtc.so",    NULL };
const char *const cuda_blaslt_names[] = { "libcublasLt.so.13", "libcublasLt.so.12",
	                                  "libcublasLt.so.11", "libcublasLt.so", NULL };
const char *const cuda_nccl_names[] = { "libnccl.so.2", "libnccl.so", NULL };

/* Folders of the wheels, relative to site-packages */
static const char *const wheels[] = { "nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib",
	                              "nvidia/cublas/lib", "nvidia/nccl/lib", NULL };

static void *
open_file(const char *file, char *path, size_t cap)
{
	/* never unloaded, because the driver runs threads in it */
	void *lib = dlopen(file, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);

	if (lib)
		snprintf(path, cap, "%s", file);
	return lib;
}

static void *
open_in(const char *dir, const char *const *name, char *path, size_t cap)
{
	Strbuf file = { 0 };
	void *lib = NULL;

	for (int i = 0; !lib && name[i]; i++) {
		file_join(&file, dir, name[i]);
		if (!file.failed && file_exists(strbuf_str(&file)))
			lib = open_file(strbuf_str(&file), path, cap);
	}
	strbuf_release(&file);
	return lib;
}

static void *
open_in_wheels(const char *site, const char *const *name, char *path, size_t cap)
{
	Strbuf dir = { 0 };
	void *lib = NULL;

	for (int i = 0; !lib && wheels[i]; i++) {
		file_join(&dir, site, wheels[i]);
		if (!dir.failed && file_is_dir(strbuf_str(&dir)))
			lib = open_in(strbuf_str(&dir), name, path, cap);
	}
	strbuf_release(&dir);
	return lib;
}

/* Folders that match a pattern, in descending order of names: cuda-13.0 before cuda-12.4. */
static void *
open_in_pattern(const char *pattern, bool site, const char *const *name, char *path, size_t cap)
{
	glob_t g = { 0 };
	void *lib = NULL;

	if (glob(pattern, 0, NULL, &g) == 0)
		for (size_t i = g.gl_pathc; !lib && i-- > 0;)
			lib = site ? open_in_wheels(g.gl_pathv[i], name, path, cap)
			           : open_in(g.gl_pathv[i], name, path, cap);
	globfree(&g);
	return lib;
}

static void *
open_below(const char *variable, const char *tail, bool site, const char *const *name, char *path,
           size_t cap)
{
	const char *top = getenv(variable);
	char pattern[1024];

	if (!top || !*top ||
	    snprintf(pattern, sizeof pattern, "%s/%s", top, tail) >= (int)sizeof pattern)
		return NULL;
	return open_in_pattern(pattern, site, name, path, cap);
}

void *
cuda_lib_open(const char *const *name, char *path, size_t cap)
{
	const char *own = getenv("LLMC_CUDA_LIBDIR");
	void *lib = NULL;

	if (cap)
		path[0] = 0;
	if (own && *own) {
		lib = open_in(own, name, path, cap);
		return lib ? lib : open_in_wheels(own, name, path, cap);
	}
	for (int i = 0; !lib && name[i]; i++)
		lib = open_file(name[i], path, cap);
	static const char *const variable[] = { "CUDA_HOME", "CUDA_PATH", "CUDA_ROOT", NULL };
	for (int i = 0; !lib && variable[i]; i++)
		lib = open_below(variable[i], "lib64", false, name, path, cap);
	static const char *const folder[] = { "/usr/local/cuda/lib64",
		                              "/usr/local/cuda/targets/*/lib",
		                              "/usr/local/cuda-*/lib64",
		                              "/opt/cuda/lib64",
		                              "/usr/lib/x86_64-linux-gnu",
		                              "/usr/lib/aarch64-linux-gnu",
		                              "/usr/lib64",
		                              NULL };
	for (int i = 0; !lib && folder[i]; i++)
		lib = open_in_pattern(folder[i], false, name, path, cap);
	if (!lib)
		lib =
		    open_below("VIRTUAL_ENV", "lib/python3*/site-packages", true, name, path, cap);
	if (!lib)
		lib = open_below("CONDA_PREFIX", "lib", false, name, path, cap);
	if (!lib)
		lib =
		    open_below("HOME", ".local/lib/python3*/site-packages", true, name, path, cap);
	if (!lib)
		lib =
		    open_in_pattern("/usr/local/lib/python3*/dist-packages", true, name, path, cap);
	return lib;
}

llmc_status
cuda_driver_open(void **lib, CudaApi *api, char *path, size_t cap, llmc_error *err)
{
	static const char *const name[] = { "libcuda.so.1", NULL };
	const char *own = getenv("LLMC_CUDA_LIBDIR");
	char other[1024];

	*lib = cuda_lib_open(name, path, cap);
	/* LLMC_CUDA_LIBDIR names a folder without the driver: open the system's */
	if (!*lib && own && *own) {
		void *nvrtc = cuda_lib_open(cuda_nvrtc_names, other, sizeof other);
		if (nvrtc) {
			dlclose(nvrtc);
			*lib = open_file(name[0], path, cap);
		}
	}
	if (!*lib && own && *own)
		return error_set(err, LLMC_E_MISSING,
		                 "no NVIDIA driver: there is no libcuda.so.1 in %s "
		                 "(LLMC_CUDA_LIBDIR); unset LLMC_CUDA_LIBDIR to use the "
		                 "system's, or run with --device cpu",
		                 own);
	if (!*lib)
		return error_set(err, LLMC_E_MISSING,
		                 "no NVIDIA driver: libcuda.so.1 is not on this machine; install "
		                 "the driver of the GPU (Debian and Ubuntu: "
		                 "`apt install nvidia-driver`; containers: start with `--gpus "
		                 "all`), or run with --device cpu");
	const char *missing_compiler = NULL;
#define X(member, symbol, args)                                                                    \
	do {                                                                                       \
		void *at_ = dlsym(*lib, #symbol);                                                  \
		memcpy(&api->member, &at_, sizeof at_);                                            \
		missing_compiler = at_ || missing_compiler ? missing_compiler : #symbol;           \
	} while (0);
	CUDA_CALLS(X)
#undef X
#define X(member, symbol, args)                                                                    \
	do {                                                                                       \
		void *at_ = dlsym(*lib, #symbol);                                                  \
		memcpy(&api->member, &at_, sizeof at_);                                            \
	} while (0);
	CUDA_NEWER_CALLS(X)
#undef X
	if (!missing_compiler)
		return LLMC_OK;
	int version = 0;
	if (api->driver_version)
		(void)!api->driver_version(&version);
	dlclose(*lib);
	*lib = NULL;
	return error_set(err, LLMC_E_MISSING,
	                 "the NVIDIA driver (%s) is too old: it supports CUDA %d.%d and lacks %s, "
	                 "llmc needs CUDA %d.%d; update the "
	                 "driver to 520 or newer",
	                 path, version / 1000, version % 1000 / 10, missing_compiler,
	                 CUDA_MIN_DRIVER / 1000, CUDA_MIN_DRIVER % 1000 / 10);
}
