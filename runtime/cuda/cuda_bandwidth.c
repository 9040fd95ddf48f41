/* Read bandwidth of a device, measured with a kernel of our own: other parts of llmc report
 * bandwidth as a share of it. */
#include <string.h>

#include "base/clock.h"
#include "runtime/cuda/cuda.h"

/* Bytes read per launch. The first measurement reads FEW bytes; if that is slow, as on an emulator,
 * it is the result. Otherwise a launch reads CACHES times the L2 size that the device reports,
 * which is 2 GB on all but the smallest GPUs. */
enum { FEW = 4 << 20, RUNS = 9, CACHES = 256 };
static const size_t MOST = (size_t)2 << 30;

typedef struct Arg {
	CUdeviceptr p;
	unsigned long long n;
	CUdeviceptr out;
} Arg;

/* Seconds of the fastest of several launches over n bytes; 0: failed. */
static double
measure(CudaDevice *d, CUfunction f, CUstream stream, size_t n, int runs)
{
	const CudaApi *a = &d->api;
	CUdeviceptr mem = 0;
	double best = 0;

	if (a->mem_alloc(&mem, n + 256) != CU_OK)
		return 0;
	Arg arg = { mem, n / 16, mem + n };
	void *params[] = { &arg };
	CudaLaunchConfig c = { .grid_x = (unsigned)d->n_sm * 2,
		               .grid_y = 1,
		               .grid_z = 1,
		               .block_x = 512,
		               .block_y = 1,
		               .block_z = 1,
		               .stream = stream };
	bool ok = a->set8(mem, 0x5b, n + 256, stream) == CU_OK;
	for (int i = 0; ok && i < runs; i++) {
		ok = a->stream_sync(stream) == CU_OK;
		double t = clock_now();
		ok = ok && a->launch(&c, f, params, NULL) == CU_OK &&
		     a->stream_sync(stream) == CU_OK;
		t = clock_now() - t;
		best = best == 0 || t < best ? t : best;
	}
	CUDA_RELEASE(a->mem_free(mem));
	return ok ? best : 0;
}

/* Bytes that one launch reads, of `left` free ones. */
static size_t
bytes_for(CudaDevice *d, size_t left)
{
	int l2 = 0;
	size_t n = MOST;

	if (d->api.device_attr(&l2, CU_ATTR_L2_BYTES, d->dev) == CU_OK && l2 > 0 &&
	    (size_t)l2 < MOST / CACHES)
		n = (size_t)l2 * CACHES;
	return left / 2 < n ? left / 2 & ~(size_t)0xffff : n;
}

static double
measure_with(CudaDevice *d, const Strbuf *image)
{
	const CudaApi *a = &d->api;
	CUmodule m = NULL;
	CUfunction f = NULL;
	CUstream stream = NULL;
	size_t left = 0, total = 0;
	double t = 0, first, rate = 0;

	if (a->module_load(&m, image->data) == CU_OK &&
	    a->module_function(&f, m, "llmc_read_all") == CU_OK &&
	    a->stream_create(&stream, CU_STREAM_NON_BLOCKING) == CU_OK &&
	    (first = measure(d, f, stream, FEW, 2)) > 0) {
		rate = FEW / first;
		if (first < 1e-3 && a->mem_info(&left, &total) == CU_OK) {
			size_t n = bytes_for(d, left);
			t = n > FEW ? measure(d, f, stream, n, RUNS) : 0;
			rate = t > 0 ? (double)n / t : rate;
		}
	}
	if (stream)
		CUDA_RELEASE(a->stream_destroy(stream));
	if (m)
		CUDA_RELEASE(a->module_unload(m));
	return rate;
}

double
cuda_bandwidth(int number)
{
	CudaDevice d;
	Nvrtc n = { 0 };
	Strbuf source = { 0 }, image = { 0 };
	char arch[16];
	double rate = 0;

	if (cuda_device_open(&d, number, true, NULL) != LLMC_OK)
		return 0;
	if (cuda_enter(&d, NULL) == LLMC_OK) {
		const char *target = cuda_best_target(d.cc);
		if (target && nvrtc_open(&n, d.driver, NULL) == LLMC_OK) {
			cuda_arch(d.cc, target, arch);
			if (cuda_source_embedded("runtime/read.cu", &source, NULL) == LLMC_OK &&
			    nvrtc_compile(&n, strbuf_str(&source), "read.cu", arch, &image, NULL,
			                  NULL) == LLMC_OK)
				rate = measure_with(&d, &image);
			nvrtc_close(&n);
		}
		cuda_leave(&d);
	}
	cuda_device_close(&d);
	strbuf_release(&source);
	strbuf_release(&image);
	return rate;
}
