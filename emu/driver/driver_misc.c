/* Less frequently used calls: symbols by name, peers, occupancy, pointer attributes */
#include "driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* Returns a function by name. Newer versions of a call are tried first, as in the real driver. */
static void *
newest(const char *name)
{
	static const char *const tails[] = { "_v3", "_v2", "" };
	char text[128];

	for (size_t i = 0; i < sizeof tails / sizeof *tails; i++) {
		snprintf(text, sizeof text, "%s%s", name, tails[i]);
		void *p = dlsym(RTLD_DEFAULT, text);
		Dl_info here, there;
		if (!p) { /* this library may not be in the global scope */
			void *self = dladdr((void *)(uintptr_t)newest, &here)
			                 ? dlopen(here.dli_fname, RTLD_NOW | RTLD_NOLOAD)
			                 : NULL;
			p = self ? dlsym(self, text) : NULL;
			if (self)
				dlclose(self);
		}
		if (p && dladdr(p, &there) && dladdr((void *)(uintptr_t)newest, &here) &&
		    there.dli_fbase == here.dli_fbase)
			return p;
	}
	return NULL;
}

API(cuGetProcAddress_v2, (const char *name, void **fn, int version, uint64_t flags, int *status))
{
	ENTER(cuGetProcAddress_v2, ANYTIME);
	(void)flags;
	if (!name || !fn)
		return CUDA_ERROR_INVALID_VALUE;
	*fn = newest(name);
	if (status)
		*status = *fn ? 0 : 1;
	if (!*fn)
		return status ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
	return version > (int)emu_env("LLMC_EMU_DRIVER", 13000) ? CUDA_ERROR_INVALID_VALUE
	                                                        : CUDA_SUCCESS;
}

API(cuGetProcAddress, (const char *name, void **fn, int version, uint64_t flags))
{
	return cuGetProcAddress_v2(name, fn, version, flags, NULL);
}

API(cuCtxSetLimit, (int limit, size_t value))
{
	ENTER(cuCtxSetLimit, NEEDS_CONTEXT);
	(void)value;
	return limit < 0 || limit > 10 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

API(cuDeviceCanAccessPeer, (int *can, CUdevice a, CUdevice b))
{
	ENTER(cuDeviceCanAccessPeer, NEEDS_INIT);
	int n = (int)emu_env("LLMC_EMU_DEVICES", 1);
	if (!can)
		return CUDA_ERROR_INVALID_VALUE;
	if (a < 0 || b < 0 || a >= n || b >= n)
		return CUDA_ERROR_INVALID_DEVICE;
	*can = a != b && !emu_env("LLMC_EMU_NO_PEERS", 0);
	return CUDA_SUCCESS;
}

API(cuCtxEnablePeerAccess, (CUcontext peer, unsigned flags))
{
	ENTER(cuCtxEnablePeerAccess, NEEDS_CONTEXT);
	if (!peer || flags || peer == driver_context)
		return CUDA_ERROR_INVALID_VALUE;
	if (emu_env("LLMC_EMU_NO_PEERS", 0))
		return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
	if (emu_peers(driver_context->device, peer->device))
		return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
	driver_context->peers |= 1u << peer->device;
	return CUDA_SUCCESS;
}

API(cuCtxDisablePeerAccess, (CUcontext peer))
{
	ENTER(cuCtxDisablePeerAccess, NEEDS_CONTEXT);
	if (!peer || peer == driver_context)
		return CUDA_ERROR_INVALID_VALUE;
	if (!emu_peers(driver_context->device, peer->device))
		return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
	driver_context->peers &= ~(1u << peer->device);
	return CUDA_SUCCESS;
}

API(cuMemcpyPeerAsync,
    (CUdeviceptr d, CUcontext to, CUdeviceptr s, CUcontext from, size_t n, CUstream stream))
{
	extern CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr, CUdeviceptr, size_t, CUstream);
	{
		ENTER(cuMemcpyPeerAsync, NEEDS_CONTEXT);
		if (!to || !from)
			return CUDA_ERROR_INVALID_CONTEXT;
	}
	return cuMemcpyDtoDAsync_v2(d, s, n, stream); /* all devices share one address space here */
}

/* Attributes: 1 context, 2 kind of memory (1 host, 2 device), 9 ordinal. */
API(cuPointerGetAttribute, (void *out, int attribute, CUdeviceptr p))
{
	ENTER(cuPointerGetAttribute, NEEDS_CONTEXT);
	bool device = memory_is_device(p, 1), pinned = memory_is_pinned((void *)(uintptr_t)p, 1);
	if (!out || !(device || pinned))
		return CUDA_ERROR_INVALID_VALUE;
	switch (attribute) {
	case 1:
		memcpy(out, &driver_context, sizeof driver_context);
		return CUDA_SUCCESS;
	case 2:
		*(unsigned *)out = device ? 2 : 1;
		return CUDA_SUCCESS;
	case 9:
		*(int *)out = driver_context->device;
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_NOT_SUPPORTED;
	}
}

API(cuFuncGetName, (const char **name, CUfunction fn))
{
	ENTER(cuFuncGetName, NEEDS_CONTEXT);
	Func *f = (Func *)(void *)fn;
	if (!name)
		return CUDA_ERROR_INVALID_VALUE;
	if (!module_has_function(f))
		return CUDA_ERROR_INVALID_HANDLE;
	*name = f->name;
	return CUDA_SUCCESS;
}

API(cuOccupancyMaxPotentialBlockSize,
    (int *grid, int *block, CUfunction fn, CUoccupancyB2DSize dyn_of, size_t dyn, int limit))
{
	ENTER(cuOccupancyMaxPotentialBlockSize, NEEDS_CONTEXT);
	Func *f = (Func *)(void *)fn;
	int best = 0;
	if (!grid || !block)
		return CUDA_ERROR_INVALID_VALUE;
	if (!module_has_function(f))
		return CUDA_ERROR_INVALID_HANDLE;
	for (int b = limit > 0 && limit < f->max_threads ? limit : f->max_threads; b >= 32;
	     b -= 32) {
		int n = func_residency(f, b, (uint32_t)(dyn_of ? dyn_of(b) : dyn));
		if (n * b > best) {
			best = n * b;
			*block = b;
			*grid = n * (int)emu_env("LLMC_EMU_SMS", 4);
		}
	}
	return best ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API(cuOccupancyMaxActiveClusters, (int *n, CUfunction fn, const CUlaunchConfig *c))
{
	ENTER(cuOccupancyMaxActiveClusters, NEEDS_CONTEXT);
	Func *f = (Func *)(void *)fn;
	unsigned per = 1;
	if (!n || !c || emu_arch < 90)
		return CUDA_ERROR_INVALID_VALUE;
	if (!module_has_function(f))
		return CUDA_ERROR_INVALID_HANDLE;
	for (unsigned i = 0; i < c->numAttrs; i++)
		if (c->attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
			per = c->attrs[i].value.clusterDim.x * c->attrs[i].value.clusterDim.y *
			      c->attrs[i].value.clusterDim.z;
	if (!per || per > (f->nonportable ? 16u : 8u))
		return CUDA_ERROR_INVALID_CLUSTER_SIZE;
	*n = func_residency(f, (int)(c->blockDimX * c->blockDimY * c->blockDimZ),
	                    c->sharedMemBytes) *
	     (int)emu_env("LLMC_EMU_SMS", 4) / (int)per;
	return CUDA_SUCCESS;
}

API(cuThreadExchangeStreamCaptureMode, (int *mode))
{
	static __thread int mine = CU_STREAM_CAPTURE_MODE_GLOBAL;
	ENTER(cuThreadExchangeStreamCaptureMode, NEEDS_INIT);
	if (!mode || *mode < 0 || *mode > 2)
		return CUDA_ERROR_INVALID_VALUE;
	int old = mine;
	mine = *mode;
	*mode = old;
	return CUDA_SUCCESS;
}

API(cuEventRecordWithFlags, (CUevent e, CUstream s, unsigned flags))
{
	extern CUresult cuEventRecord(CUevent, CUstream);
	return flags > 1 ? CUDA_ERROR_INVALID_VALUE : cuEventRecord(e, s);
}
