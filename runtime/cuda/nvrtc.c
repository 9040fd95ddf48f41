/* NVRTC: CUDA C to an image of one architecture, from any number of threads at once. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/cuda/cuda.h"

const char nvrtc_options[] = "--std=c++17 --fmad=true";

static llmc_status
bind(Nvrtc *n, llmc_error *err)
{
	const char *missing_compiler = NULL;

#define X(type, member, symbol, args)                                                              \
	do {                                                                                       \
		void *at_ = dlsym(n->lib, #symbol);                                                \
		memcpy(&n->api.member, &at_, sizeof at_);                                          \
		missing_compiler = at_ || missing_compiler ? missing_compiler : #symbol;           \
	} while (0);
	NVRTC_CALLS(X)
#undef X
	if (missing_compiler)
		return error_set(err, LLMC_E_MISSING,
		                 "%s is too old: it lacks %s; install NVRTC 12 or newer (`pip "
		                 "install nvidia-cuda-nvrtc`)",
		                 n->path, missing_compiler);
	if (n->api.version(&n->major, &n->minor) != NVRTC_OK)
		return error_set(err, LLMC_E_MISSING, "%s does not report its version", n->path);
	if (n->api.n_archs(&n->n_arch) != NVRTC_OK || n->n_arch < 0 ||
	    n->n_arch > (int)(sizeof n->arch / sizeof *n->arch) ||
	    n->api.archs(n->arch) != NVRTC_OK)
		n->n_arch = 0; /* without a list of architectures, compiling reports the error */
	return LLMC_OK;
}

static llmc_status
open_first(Nvrtc *n, const char *const *names, llmc_error *err)
{
	*n = (Nvrtc){ 0 };
	n->lib = cuda_lib_open(names, n->path, sizeof n->path);
	if (!n->lib) {
		const char *own = getenv("LLMC_CUDA_LIBDIR");
		if (own && *own)
			return error_set(
			    err, LLMC_E_MISSING,
			    "there is no libnvrtc.so (12 or 13) in %s (LLMC_CUDA_LIBDIR): `pip "
			    "install nvidia-cuda-nvrtc` and set it "
			    "to the wheel's lib folder, or unset it to look in the usual places",
			    own);
		return error_set(err, LLMC_E_MISSING,
		                 "NVRTC (libnvrtc.so.13 or .12) is not on this machine: `pip "
		                 "install nvidia-cuda-nvrtc` and set "
		                 "LLMC_CUDA_LIBDIR to its lib folder, or install the package "
		                 "libnvrtc of the CUDA toolkit");
	}
	return bind(n, err);
}

llmc_status
nvrtc_open(Nvrtc *n, int driver, llmc_error *err)
{
	llmc_status status = open_first(n, cuda_nvrtc_names, err);

	if (status != LLMC_OK) {
		nvrtc_close(n);
		return status;
	}
	if (!driver || n->major <= driver / 1000)
		return LLMC_OK;
	/* this NVRTC requires a newer driver; an older NVRTC may be installed next to it */
	int major = n->major, minor = n->minor;
	char path[sizeof n->path];
	memcpy(path, n->path, sizeof path);
	for (const char *const *name = cuda_nvrtc_names; *name; name++) {
		const char *const one[] = { *name, NULL };
		nvrtc_close(n);
		if (open_first(n, one, NULL) == LLMC_OK && n->major <= driver / 1000)
			return LLMC_OK;
	}
	nvrtc_close(n);
	return error_set(err, LLMC_E_MISSING,
	                 "%s is of CUDA %d.%d, the driver here takes code of CUDA %d at most: "
	                 "update the driver, or install NVRTC %d "
	                 "(`pip install nvidia-cuda-nvrtc-cu%d`)",
	                 path, major, minor, driver / 1000, driver / 1000, driver / 1000);
}

void
nvrtc_close(Nvrtc *n)
{
	if (n->lib)
		dlclose(n->lib);
	n->lib = NULL;
}

static bool
strbuf_room(Strbuf *b, size_t n)
{
	static const char zero[4096];

	strbuf_clear(b);
	while (b->len < n && !b->failed)
		strbuf_add(b, zero, n - b->len < sizeof zero ? n - b->len : sizeof zero);
	return !b->failed;
}

/* Split the options in `text`, in place, into a list. */
static int
split(char *text, const char **list, int cap)
{
	char *save = NULL;
	int n = 0;

	for (char *w = strtok_r(text, " ", &save); w && n < cap; w = strtok_r(NULL, " ", &save))
		list[n++] = w;
	return n;
}

llmc_status
nvrtc_compile(const Nvrtc *n, const char *source, const char *name, const char *arch, Strbuf *image,
              Strbuf *log, llmc_error *err)
{
	char text[sizeof nvrtc_options], target[64];
	const char *option[16];
	NvrtcProgram p = NULL;
	size_t size = 0;
	llmc_status status = LLMC_OK;
	int n_option, r;

	memcpy(text, nvrtc_options, sizeof text);
	n_option = split(text, option, 15);
	snprintf(target, sizeof target, "--gpu-architecture=%s", arch);
	option[n_option++] = target;
	if ((r = n->api.create(&p, source, name, 0, NULL, NULL)) != NVRTC_OK)
		return error_set(err, r == NVRTC_OUT_OF_MEMORY ? LLMC_E_MEMORY : LLMC_E_DEVICE,
		                 "%s: NVRTC %d.%d: %s", name, n->major, n->minor,
		                 n->api.error_string(r));
	r = n->api.compile(p, n_option, option);
	if (log && n->api.log_size(p, &size) == NVRTC_OK && size && strbuf_room(log, size)) {
		if (n->api.log(p, log->data) != NVRTC_OK)
			log->data[0] = 0;
		log->len = strlen(log->data);
	}
	if (r != NVRTC_OK) {
		status = error_set(err, r == NVRTC_OUT_OF_MEMORY ? LLMC_E_MEMORY : LLMC_E_CHECK,
		                   "NVRTC %d.%d: %s", n->major, n->minor, n->api.error_string(r));
	} else if ((r = n->api.cubin_size(p, &size)) != NVRTC_OK || !size) {
		status = error_set(err, LLMC_E_CHECK, "NVRTC %d.%d gave no image: %s", n->major,
		                   n->minor, n->api.error_string(r));
	} else if (!strbuf_room(image, size)) {
		status =
		    error_set(err, LLMC_E_MEMORY, "out of memory for an image of %zu bytes", size);
	} else if ((r = n->api.cubin(p, image->data)) != NVRTC_OK) {
		status = error_set(err, LLMC_E_CHECK, "NVRTC %d.%d gave no image: %s", n->major,
		                   n->minor, n->api.error_string(r));
	}
	n->api.destroy(&p);
	return status;
}
