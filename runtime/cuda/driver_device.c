/* One device: opening by number with its primary context, which the whole process shares, and error
 * messages for driver results. */
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "runtime/cuda/cuda.h"

void
cuda_result_text(const CudaApi *api, CUresult r, char *buf, size_t cap)
{
	const char *name = NULL, *text = NULL;

	(void)!api->error_name(r, &name);
	(void)!api->error_string(r, &text);
	snprintf(buf, cap, "%s (%s, %d)", text ? text : "unnamed error", name ? name : "unknown",
	         r);
}

/* Does the context stop working after this result? cuda.h of CUDA 13.0 documents this for 226, 700,
 * 702, 710, 714 to 719, 721, 810 and 911 (the process or context "must be" ended). 214 and 220 are
 * hardware failures, 709 a context that other code destroyed, 806 a lost MPS server, 4 a driver
 * that is shutting down. A GPU that falls off the bus shows as 999, or as no device although its
 * context is open. */
static bool
is_lost(const CudaDevice *d, CUresult r)
{
	switch (r) {
	case CU_DEINITIALIZED:
	case CU_ECC:
	case CU_NVLINK:
	case CU_CONTAINED:
	case CU_ILLEGAL_ADDRESS:
	case CU_LAUNCH_TIMEOUT:
	case CU_CONTEXT_IS_DESTROYED:
	case CU_ASSERT:
	case CU_HARDWARE_STACK:
	case CU_ILLEGAL_INSTRUCTION:
	case CU_MISALIGNED:
	case CU_ADDRESS_SPACE:
	case CU_INVALID_PC:
	case CU_LAUNCH_FAILED:
	case CU_TENSOR_MEMORY_LEAK:
	case CU_MPS_RPC:
	case CU_MPS_TERMINATED:
	case CU_EXTERNAL_DEVICE:
	case CU_UNKNOWN:
		return true;
	case CU_DEVICE_UNAVAILABLE:
	case CU_NO_DEVICE:
		return d->ctx != NULL;
	default:
		return false;
	}
}

llmc_status
cuda_error(CudaDevice *d, CUresult r, llmc_error *err, const char *what, ...)
{
	char text[256], doing[512], gpu[sizeof d->name + 16];
	bool lost;
	va_list ap;

	va_start(ap, what);
	vsnprintf(doing, sizeof doing, what, ap);
	va_end(ap);
	cuda_result_text(&d->api, r, text, sizeof text);
	snprintf(gpu, sizeof gpu, "GPU %d%s%s%s", d->number, d->name[0] ? " (" : "", d->name,
	         d->name[0] ? ")" : "");
	lost = is_lost(d, r);
	if (lost && !atomic_exchange(&d->lost_named, true)) {
		snprintf(d->lost_at, sizeof d->lost_at, "%s", doing);
		snprintf(d->lost_why, sizeof d->lost_why, "%s", text);
		atomic_store(&d->lost, true);
	}
	switch (r) {
	case CU_OUT_OF_MEMORY:
		return error_set(err, LLMC_E_MEMORY, "%s: %s: %s", doing, gpu, text);
	case CU_STUB_LIBRARY:
		return error_set(err, LLMC_E_MISSING,
		                 "%s: libcuda.so.1 is the toolkit's stub and no driver: take its "
		                 "folder off LD_LIBRARY_PATH, or install "
		                 "the NVIDIA driver",
		                 doing);
	case CU_OLD_DRIVER:
	case CU_DRIVER_MISMATCH:
		return error_set(
		    err, LLMC_E_MISSING,
		    "%s: %s: update the NVIDIA driver, and load its kernel module (reboot)", doing,
		    text);
	case CU_NO_DEVICE:
	case CU_SYSTEM_NOT_READY:
		if (lost)
			break;
		return error_set(err, LLMC_E_MISSING,
		                 "%s: %s: no GPU is visible (`nvidia-smi` lists them; "
		                 "CUDA_VISIBLE_DEVICES hides them); run with --device "
		                 "cpu",
		                 doing, text);
	default:
		break;
	}
	return error_set(err, LLMC_E_DEVICE, "%s: %s: %s%s", doing, gpu, text,
	                 lost ? "; close the model and open it again" : "");
}

static llmc_status
open_number(CudaDevice *d, llmc_error *err)
{
	int n = 0, major = 0, minor = 0;
	const CudaApi *a = &d->api;

	CUDA_TRY(d, a->driver_version(&d->driver), "querying the driver version");
	if (d->driver < CUDA_MIN_DRIVER)
		return error_set(err, LLMC_E_MISSING,
		                 "the NVIDIA driver is too old: it supports CUDA %d.%d, llmc needs "
		                 "CUDA %d.%d; update the driver to 520 or "
		                 "newer",
		                 d->driver / 1000, d->driver % 1000 / 10, CUDA_MIN_DRIVER / 1000,
		                 CUDA_MIN_DRIVER % 1000 / 10);
	CUDA_TRY(d, a->init(0), "starting the NVIDIA driver");
	CUDA_TRY(d, a->device_count(&n), "counting GPUs");
	if (n == 0)
		return cuda_error(d, CU_NO_DEVICE, err, "looking for a GPU");
	if (d->number < 0 || d->number >= n)
		return error_set(err, LLMC_E_RANGE,
		                 "there is no GPU %d: this machine has %d (cuda:0%s)", d->number, n,
		                 n > 1 ? " and on" : "");
	CUDA_TRY(d, a->device_get(&d->dev, d->number), "opening GPU %d", d->number);
	CUDA_TRY(d, a->device_name(d->name, sizeof d->name, d->dev), "querying the name of GPU %d",
	         d->number);
	CUDA_TRY(d, a->device_attr(&major, CU_ATTR_MAJOR, d->dev),
	         "querying the compute capability of GPU %d", d->number);
	CUDA_TRY(d, a->device_attr(&minor, CU_ATTR_MINOR, d->dev),
	         "querying the compute capability of GPU %d", d->number);
	CUDA_TRY(d, a->device_attr(&d->n_sm, CU_ATTR_SM_COUNT, d->dev),
	         "querying the number of SMs of GPU %d", d->number);
	d->n_sm = d->n_sm < PLAN_MAX_SM ? d->n_sm : PLAN_MAX_SM;
	CUDA_TRY(d, a->device_attr(&d->cooperative, CU_ATTR_COOPERATIVE, d->dev),
	         "querying cooperative launches of GPU %d", d->number);
	CUDA_TRY(d, a->device_attr(&d->max_shared, CU_ATTR_SHARED_OPTIN, d->dev),
	         "querying the shared memory of GPU %d", d->number);
	CUDA_TRY(d, a->device_attr(&d->sm_shared, CU_ATTR_SM_SHARED, d->dev),
	         "querying the shared memory of GPU %d", d->number);
	CUDA_TRY(d, a->device_attr(&d->l2_bytes, CU_ATTR_L2_BYTES, d->dev),
	         "querying the L2 cache of GPU %d", d->number);
	CUDA_TRY(d, a->device_total(&d->total_bytes, d->dev), "querying the memory of GPU %d",
	         d->number);
	d->cc = major * 10 + minor;
	return LLMC_OK;
}

llmc_status
cuda_device_open(CudaDevice *d, int number, bool context, llmc_error *err)
{
	char path[1024];
	llmc_status status;

	*d = (CudaDevice){ .number = number };
	atomic_init(&d->lost, false);
	atomic_init(&d->lost_named, false);
	TRY(cuda_driver_open(&d->lib, &d->api, path, sizeof path, err));
	TRY_GOTO(open_number(d, err));
	if (context) {
		CUresult r = d->api.ctx_retain(&d->ctx, d->dev);
		if (r != CU_OK) {
			d->ctx = NULL;
			status = cuda_error(d, r, err, "opening GPU %d", number);
			goto fail;
		}
	}
	return LLMC_OK;
fail:
	cuda_device_close(d);
	return status;
}

void
cuda_device_close(CudaDevice *d)
{
	if (d->ctx)
		CUDA_RELEASE(d->api.ctx_release(d->dev));
	d->ctx = NULL;
	if (d->lib)
		dlclose(d->lib);
	d->lib = NULL;
}

llmc_status
cuda_enter(CudaDevice *d, llmc_error *err)
{
	if (atomic_load_explicit(&d->lost, memory_order_relaxed))
		return error_set(err, LLMC_E_DEVICE,
		                 "%s: GPU %d (%s) has failed before: %s; close the model and open "
		                 "it again",
		                 d->lost_at, d->number, d->name, d->lost_why);
	CUDA_TRY(d, d->api.ctx_push(d->ctx), "using GPU %d", d->number);
	return LLMC_OK;
}

void
cuda_leave(CudaDevice *d)
{
	CUcontext was;

	CUDA_RELEASE(d->api.ctx_pop(&was));
}
