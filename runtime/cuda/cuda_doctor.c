/* The CUDA part of `llmc doctor`: where each library was found, or how to install it; each GPU and
 * the target it runs. */
#include <dlfcn.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "runtime/cuda/cublaslt.h"

static json_t *
devices(CudaDevice *first, const CudaApi *api)
{
	json_t *list = json_array();
	int n = 0;

	if (api->device_count(&n) != CU_OK)
		n = 0;
	for (int i = 0; i < n && i < 64; i++) {
		CudaDevice d;
		llmc_error why = { 0 };
		if (i > 0 ? cuda_device_open(&d, i, false, &why) != LLMC_OK : (d = *first, false)) {
			json_array_append_new(
			    list, json_pack("{s:i, s:s}", "number", i, "text", why.text));
			continue;
		}
		const char *target = cuda_best_target(d.cc);
		json_array_append_new(
		    list, json_pack("{s:i, s:s, s:i, s:s, s:i, s:I, s:i, s:o}", "number", i, "name",
		                    d.name, "arch", d.cc, "target", target ? target : "",
		                    "multiprocessors", d.n_sm, "memory_bytes",
		                    (json_int_t)d.total_bytes, "shared_bytes", d.max_shared,
		                    "supported", json_boolean(target != NULL)));
		if (i > 0)
			cuda_device_close(&d);
	}
	return list;
}

static json_t *
library(const char *const *names, const char *without)
{
	char path[1024];
	void *lib = cuda_lib_open(names, path, sizeof path);
	json_t *j = json_pack("{s:b, s:s, s:s}", "found", lib != NULL, "path", path, "text",
	                      lib ? path : without);

	if (lib)
		dlclose(lib);
	return j;
}

static json_t *
nvrtc(int driver)
{
	Nvrtc n;
	llmc_error why = { 0 };
	char text[64];

	if (nvrtc_open(&n, driver, &why) != LLMC_OK)
		return json_pack("{s:b, s:s, s:s}", "found", 0, "path", "", "text", why.text);
	snprintf(text, sizeof text, "NVRTC %d.%d", n.major, n.minor);
	json_t *archs = json_array();
	for (int i = 0; i < n.n_arch; i++)
		json_array_append_new(archs, json_integer(n.arch[i]));
	json_t *j = json_pack("{s:b, s:s, s:s, s:i, s:i, s:o}", "found", 1, "path", n.path, "text",
	                      text, "major", n.major, "minor", n.minor, "archs", archs);
	nvrtc_close(&n);
	return j;
}

static json_t *
cublaslt(int driver)
{
	LtLibrary l;
	llmc_error why = { 0 };
	char text[160];

	if (lt_library_open(&l, driver, &why) != LLMC_OK)
		return json_pack("{s:b, s:s, s:s}", "found", 0, "path", "", "text", why.text);
	snprintf(text, sizeof text,
	         "cuBLASLt %zu.%zu.%zu: runs GEMMs of prefill where it measures faster "
	         "(LLMC_CUBLASLT=auto)",
	         l.version / 10000, l.version % 10000 / 100, l.version % 100);
	json_t *j = json_pack("{s:b, s:s, s:s}", "found", 1, "path", l.path, "text", text);
	lt_library_close(&l);
	return j;
}

llmc_status
cuda_describe(char **json, llmc_error *err)
{
	CudaDevice d;
	llmc_error why = { 0 };
	bool usable = cuda_device_open(&d, 0, false, &why) == LLMC_OK;
	json_t *j = json_pack("{s:{s:b, s:i, s:s}}", "driver", "found", usable, "version",
	                      usable ? d.driver : 0, "text", usable ? "" : why.text);

	*json = NULL;
	if (j && usable) {
		char text[64];
		snprintf(text, sizeof text, "supports CUDA %d.%d", d.driver / 1000,
		         d.driver % 1000 / 10);
		json_object_set_new(json_object_get(j, "driver"), "text", json_string(text));
	}
	json_object_set_new(j, "devices", usable ? devices(&d, &d.api) : json_array());
	json_object_set_new(j, "nvrtc", nvrtc(usable ? d.driver : 0));
	json_object_set_new(j, "cublaslt", cublaslt(usable ? d.driver : 0));
	json_object_set_new(
	    j, "nccl",
	    library(cuda_nccl_names,
	            "not found: GPUs that share a model (--tp) write to each other's memory "
	            "without it, where they reach that (`pip install nvidia-nccl-cu13`)"));
	if (usable)
		cuda_device_close(&d);
	*json = j ? json_dumps(j, JSON_INDENT(2)) : NULL;
	json_decref(j);
	return *json ? LLMC_OK : error_set(err, LLMC_E_MEMORY, "out of memory");
}
