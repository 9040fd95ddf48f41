#include "driver.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct Block_ {
	struct Block_ *next;
	Region *r;
	void *host;
	bool registered;
} FreeBlock;
static FreeBlock *device_pieces, *host_pieces;
static size_t used_bytes; /* by this process */

static bool
within(const void *p, size_t n, RegionKind kind)
{
	Region *r = region_of(p);
	return r && r->kind == kind && n <= (size_t)(r->hi - (const char *)p);
}

bool
memory_is_device(CUdeviceptr p, size_t n)
{
	const void *q = (const void *)(uintptr_t)p;
	return within(q, n ? n : 1, R_DEVICE) || within(q, n ? n : 1, R_MODULE);
}

bool
memory_is_pinned(const void *p, size_t n)
{
	return within(p, n ? n : 1, R_PINNED);
}

static size_t
total(void)
{
	return (size_t)emu_env("LLMC_EMU_MEM_MB", 16384) << 20;
}

/* Returns the counter of bytes in use on the device. All processes that name the same file share
 * one counter; otherwise this process has its own. */
static _Atomic size_t *
in_use(void)
{
	static _Atomic size_t alone, *at;
	const char *file = getenv("LLMC_EMU_SHARED");

	if (at)
		return at;
	at = &alone;
	int fd = file && *file ? open(file, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
	if (fd >= 0 && ftruncate(fd, sizeof *at) == 0) {
		void *p = mmap(NULL, sizeof *at, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		if (p != MAP_FAILED)
			at = p;
	}
	if (file && *file && at == &alone)
		emu_note("LLMC_EMU_SHARED: %s cannot be used", file);
	if (fd >= 0)
		close(fd);
	return at;
}

static bool
take(size_t n)
{
	size_t now = atomic_load(in_use()), all = total();

	do
		if (now > all || n > all - now)
			return false;
	while (!atomic_compare_exchange_weak(in_use(), &now, now + n));
	used_bytes += n;
	return true;
}

static void
give(size_t n)
{
	atomic_fetch_sub(in_use(), n);
	used_bytes -= n;
}

API(cuMemGetInfo_v2, (size_t *left, size_t *all))
{
	ENTER(cuMemGetInfo_v2, NEEDS_CONTEXT);
	size_t now = atomic_load(in_use());
	*all = total();
	*left = now < *all ? *all - now : 0;
	return CUDA_SUCCESS;
}

API(cuMemAlloc_v2, (CUdeviceptr * p, size_t n))
{
	ENTER(cuMemAlloc_v2, NEEDS_CONTEXT | UNSAFE_IN_CAPTURE);
	if (!p || !n)
		return CUDA_ERROR_INVALID_VALUE;
	if (!take(n))
		return CUDA_ERROR_OUT_OF_MEMORY;
	Region *r = region_new(R_DEVICE, n);
	if (!r) {
		give(n);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	FreeBlock *x = emu_alloc(sizeof *x);
	*x = (FreeBlock){ device_pieces, r, NULL, false };
	device_pieces = x;
	*p = (uintptr_t)r->lo;
	return CUDA_SUCCESS;
}

static void
damage_check(void)
{
	const char *where;
	Region *r = region_damage(&where);

	if (r) {
		emu_note("out-of-bounds write, %s of a device allocation of %zu bytes, found when "
		         "memory was freed",
		         where, r->bytes);
		emu_error = CUDA_ERROR_ILLEGAL_ADDRESS;
	}
}

API(cuMemFree_v2, (CUdeviceptr p))
{
	ENTER(cuMemFree_v2, NEEDS_CONTEXT | UNSAFE_IN_CAPTURE);
	if (!p)
		return CUDA_SUCCESS;
	for (FreeBlock **x = &device_pieces; *x; x = &(*x)->next)
		if ((uintptr_t)(*x)->r->lo == p) {
			FreeBlock *dead = *x;
			timeline_run_device(); /* freeing waits for the device, as in CUDA */
			timeline_known_all(emu_device());
			if (!emu_error)
				damage_check();
			give(dead->r->bytes);
			region_drop(dead->r);
			*x = dead->next;
			free(dead);
			return driver_sticky();
		}
	return CUDA_ERROR_INVALID_VALUE;
}

API(cuMemGetAddressRange_v2, (CUdeviceptr * base, size_t *n, CUdeviceptr p))
{
	ENTER(cuMemGetAddressRange_v2, NEEDS_CONTEXT);
	Region *r = region_of((void *)(uintptr_t)p);
	if (!r || r->kind != R_DEVICE)
		return CUDA_ERROR_NOT_FOUND;
	if (base)
		*base = (uintptr_t)r->lo;
	if (n)
		*n = r->bytes;
	return CUDA_SUCCESS;
}

static CUresult
host_alloc(void **p, size_t n)
{
	if (!p || !n)
		return CUDA_ERROR_INVALID_VALUE;
	FreeBlock *x = emu_alloc(sizeof *x);
	x->host = aligned_alloc(4096, (n + 4095) / 4096 * 4096);
	if (!x->host) {
		free(x);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	memset(x->host, 0xfb, n);
	x->r = region_adopt(R_PINNED, x->host, n);
	x->next = host_pieces;
	host_pieces = x;
	*p = x->host;
	return CUDA_SUCCESS;
}

API(cuMemHostAlloc, (void **p, size_t n, unsigned flags))
{
	ENTER(cuMemHostAlloc, NEEDS_CONTEXT | UNSAFE_IN_CAPTURE);
	return flags & ~7u ? CUDA_ERROR_INVALID_VALUE : host_alloc(p, n);
}

API(cuMemAllocHost_v2, (void **p, size_t n))
{
	ENTER(cuMemAllocHost_v2, NEEDS_CONTEXT | UNSAFE_IN_CAPTURE);
	return host_alloc(p, n);
}

static bool
copy_uses(const EmuOp *op, const void *region)
{
	return op->kind == OP_COPY && !op->stage &&
	       (region_of(op->src) == region || region_of(op->dst) == region);
}

static CUresult
host_drop(void *p, bool registered)
{
	for (FreeBlock **x = &host_pieces; *x; x = &(*x)->next)
		if ((*x)->host == p && (*x)->registered == registered) {
			FreeBlock *dead = *x;
			const EmuOp *op = timeline_uses(copy_uses, dead->r);
			if (op) { /* the device would later write or read this memory */
				emu_note(
				    "%s: the host has not waited for a %s that uses this memory",
				    registered ? "cuMemHostUnregister" : "cuMemFreeHost", op->name);
				emu_error = CUDA_ERROR_LAUNCH_FAILED;
			}
			timeline_run_device();
			timeline_known_all(emu_device());
			region_drop(dead->r);
			if (!registered)
				free(dead->host);
			*x = dead->next;
			free(dead);
			return driver_sticky();
		}
	return registered ? CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED : CUDA_ERROR_INVALID_VALUE;
}

API(cuMemFreeHost, (void *p))
{
	ENTER(cuMemFreeHost, NEEDS_CONTEXT | UNSAFE_IN_CAPTURE);
	return p ? host_drop(p, false) : CUDA_ERROR_INVALID_VALUE;
}

API(cuMemHostRegister_v2, (void *p, size_t n, unsigned flags))
{
	ENTER(cuMemHostRegister_v2, NEEDS_CONTEXT | UNSAFE_IN_CAPTURE);
	(void)flags;
	if (!p || !n)
		return CUDA_ERROR_INVALID_VALUE;
	if (region_of(p) || region_of((char *)p + n - 1))
		return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
	FreeBlock *x = emu_alloc(sizeof *x);
	*x = (FreeBlock){ host_pieces, region_adopt(R_PINNED, p, n), p, true };
	host_pieces = x;
	return CUDA_SUCCESS;
}

API(cuMemHostUnregister, (void *p))
{
	ENTER(cuMemHostUnregister, NEEDS_CONTEXT | UNSAFE_IN_CAPTURE);
	return host_drop(p, true);
}

API(cuMemHostGetDevicePointer_v2, (CUdeviceptr * d, void *p, unsigned flags))
{
	ENTER(cuMemHostGetDevicePointer_v2, NEEDS_CONTEXT);
	if (flags || !memory_is_pinned(p, 1))
		return CUDA_ERROR_INVALID_VALUE;
	*d = (uintptr_t)p;
	return CUDA_SUCCESS;
}

int
memory_release_all(void)
{
	int n = 0;

	while (device_pieces) {
		FreeBlock *x = device_pieces;
		device_pieces = x->next;
		n++;
		region_drop(x->r);
		free(x);
	}
	while (host_pieces) {
		FreeBlock *x = host_pieces;
		host_pieces = x->next;
		n++;
		region_drop(x->r);
		if (!x->registered)
			free(x->host);
		free(x);
	}
	give(used_bytes);
	return n;
}

/* ---- copies and fills ---- */

static CUresult
copy(CUstream handle, void *dst, const void *src, size_t n, bool dst_device, bool src_device,
     bool wait, const char *name)
{
	CUstream s;
	CUresult r = stream_get(handle, &s);

	if (r)
		return r;
	if (!n)
		return CUDA_SUCCESS;
	if ((dst_device && !memory_is_device((uintptr_t)dst, n) && !memory_is_pinned(dst, n)) ||
	    (src_device && !memory_is_device((uintptr_t)src, n) && !memory_is_pinned(src, n)) ||
	    !dst || !src)
		return CUDA_ERROR_INVALID_VALUE;
	if ((!dst_device && memory_is_device((uintptr_t)dst, 1)) ||
	    (!src_device && memory_is_device((uintptr_t)src, 1))) {
		emu_note("%s: %p is device memory, a host address is expected", name,
		         dst_device ? src : dst);
		return CUDA_ERROR_INVALID_VALUE;
	}
	if ((const char *)dst < (const char *)src + n &&
	    (const char *)src < (const char *)dst + n) {
		emu_note("%s: source and target overlap", name);
		return CUDA_ERROR_INVALID_VALUE;
	}
	EmuOp *op = op_new(OP_COPY, name);
	op->dst = dst;
	op->src = (char *)(uintptr_t)src;
	op->bytes = n;
	op->host_dst = !dst_device;
	bool dst_pageable = !dst_device && !memory_is_pinned(dst, n),
	     src_pageable = !src_device && !memory_is_pinned(src, n);
	if (wait && s->cap)
		return op_template_free(op), capture_refuse(s, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
	if (!s->cap && src_pageable) { /* the driver copies the source before it returns */
		op->stage = emu_alloc(n);
		memcpy(op->stage, src, n);
	}
	r = stream_add(s, op, false);
	if (!r && !s->cap && (wait || dst_pageable))
		r = stream_wait(s);
	return r;
}

API(cuMemcpyHtoD_v2, (CUdeviceptr d, const void *s, size_t n))
{
	ENTER(cuMemcpyHtoD_v2, NEEDS_CONTEXT | UNSAFE_IN_CAPTURE);
	return copy(NULL, (void *)(uintptr_t)d, s, n, true, false, true, "cuMemcpyHtoD");
}

API(cuMemcpyDtoH_v2, (void *d, CUdeviceptr s, size_t n))
{
	ENTER(cuMemcpyDtoH_v2, NEEDS_CONTEXT | UNSAFE_IN_CAPTURE);
	return copy(NULL, d, (void *)(uintptr_t)s, n, false, true, true, "cuMemcpyDtoH");
}

API(cuMemcpyDtoD_v2, (CUdeviceptr d, CUdeviceptr s, size_t n))
{
	ENTER(cuMemcpyDtoD_v2, NEEDS_CONTEXT | UNSAFE_IN_CAPTURE);
	return copy(NULL, (void *)(uintptr_t)d, (void *)(uintptr_t)s, n, true, true, false,
	            "cuMemcpyDtoD");
}

API(cuMemcpyHtoDAsync_v2, (CUdeviceptr d, const void *s, size_t n, CUstream stream))
{
	ENTER(cuMemcpyHtoDAsync_v2, NEEDS_CONTEXT);
	return copy(stream, (void *)(uintptr_t)d, s, n, true, false, false, "cuMemcpyHtoDAsync");
}

API(cuMemcpyDtoHAsync_v2, (void *d, CUdeviceptr s, size_t n, CUstream stream))
{
	ENTER(cuMemcpyDtoHAsync_v2, NEEDS_CONTEXT);
	return copy(stream, d, (void *)(uintptr_t)s, n, false, true, false, "cuMemcpyDtoHAsync");
}

API(cuMemcpyDtoDAsync_v2, (CUdeviceptr d, CUdeviceptr s, size_t n, CUstream stream))
{
	ENTER(cuMemcpyDtoDAsync_v2, NEEDS_CONTEXT);
	return copy(stream, (void *)(uintptr_t)d, (void *)(uintptr_t)s, n, true, true, false,
	            "cuMemcpyDtoDAsync");
}

static CUresult
fill(CUstream handle, CUdeviceptr d, uint64_t value, int size, size_t n, const char *name)
{
	CUstream s;
	CUresult r = stream_get(handle, &s);

	if (r)
		return r;
	if (!n)
		return CUDA_SUCCESS;
	if (n > SIZE_MAX / 4 || d % (unsigned)size || !memory_is_device(d, n * (size_t)size))
		return CUDA_ERROR_INVALID_VALUE;
	EmuOp *op = op_new(OP_SET, name);
	op->dst = (char *)(uintptr_t)d;
	op->bytes = n * (size_t)size;
	op->value = value;
	op->value_size = size;
	return stream_add(s, op, false);
}

API(cuMemsetD8_v2, (CUdeviceptr d, unsigned char v, size_t n))
{
	ENTER(cuMemsetD8_v2, NEEDS_CONTEXT | UNSAFE_IN_CAPTURE);
	return fill(NULL, d, v, 1, n, "cuMemsetD8");
}

API(cuMemsetD32_v2, (CUdeviceptr d, unsigned v, size_t n))
{
	ENTER(cuMemsetD32_v2, NEEDS_CONTEXT | UNSAFE_IN_CAPTURE);
	return fill(NULL, d, v, 4, n, "cuMemsetD32");
}

API(cuMemsetD8Async, (CUdeviceptr d, unsigned char v, size_t n, CUstream s))
{
	ENTER(cuMemsetD8Async, NEEDS_CONTEXT);
	return fill(s, d, v, 1, n, "cuMemsetD8Async");
}

API(cuMemsetD2D8Async,
    (CUdeviceptr d, size_t pitch, unsigned char v, size_t width, size_t height, CUstream s))
{
	CUresult r = CUDA_SUCCESS;

	ENTER(cuMemsetD2D8Async, NEEDS_CONTEXT);
	if (width > pitch || pitch > INT32_MAX)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < height && !r; i++)
		r = fill(s, d + (CUdeviceptr)(i * pitch), v, 1, width, "cuMemsetD2D8Async");
	return r;
}

API(cuMemsetD16Async, (CUdeviceptr d, unsigned short v, size_t n, CUstream s))
{
	ENTER(cuMemsetD16Async, NEEDS_CONTEXT);
	return fill(s, d, v, 2, n, "cuMemsetD16Async");
}

API(cuMemsetD32Async, (CUdeviceptr d, unsigned v, size_t n, CUstream s))
{
	ENTER(cuMemsetD32Async, NEEDS_CONTEXT);
	return fill(s, d, v, 4, n, "cuMemsetD32Async");
}
