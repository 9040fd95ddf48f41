/* A driver and an NVRTC that do nothing and report success, so that a decode step takes only the
 * host's time. Used by tests/bench/cuda.py, as libcuda.so.1 and libnvrtc.so.13 of
 * LLMC_CUDA_LIBDIR. */
#include <stdlib.h>
#include <string.h>

#include "runtime/cuda/driver_abi.h"

#define API(symbol, args)                                                                          \
	__attribute__((visibility("default"))) int symbol args;                                    \
	int symbol args
#define NOTHING(symbol, args)                                                                      \
	API(symbol, args)                                                                          \
	{                                                                                          \
		return 0;                                                                          \
	}

enum { NULL_CC_MAJOR = 9, NULL_CC_MINOR = 0, NULL_SM = 132 };

NOTHING(cuInit, (unsigned flags))
API(cuDriverGetVersion, (int *v))
{
	*v = 13000;
	return 0;
}
API(cuGetErrorName, (CUresult r, const char **text))
{
	*text = "NULL";
	return 0;
}
API(cuGetErrorString, (CUresult r, const char **text))
{
	*text = "null";
	return 0;
}
API(cuDeviceGetCount, (int *n))
{
	*n = 1;
	return 0;
}
API(cuDeviceGet, (CUdevice * d, int number))
{
	*d = 0;
	return 0;
}
API(cuDeviceGetName, (char *name, int cap, CUdevice d))
{
	strncpy(name, "null", (size_t)cap);
	return 0;
}
API(cuDeviceGetAttribute, (int *v, int attribute, CUdevice d))
{
	*v = attribute == CU_ATTR_SM_COUNT       ? NULL_SM
	     : attribute == CU_ATTR_MAJOR        ? NULL_CC_MAJOR
	     : attribute == CU_ATTR_MINOR        ? NULL_CC_MINOR
	     : attribute == CU_ATTR_SHARED_OPTIN ? 232448
	                                         : 1;
	return 0;
}
API(cuDeviceTotalMem_v2, (size_t *bytes, CUdevice d))
{
	*bytes = (size_t)141 << 30;
	return 0;
}
API(cuDevicePrimaryCtxRetain, (CUcontext * c, CUdevice d))
{
	*c = (CUcontext)(uintptr_t)8;
	return 0;
}
NOTHING(cuDevicePrimaryCtxRelease_v2, (CUdevice d))
NOTHING(cuCtxPushCurrent_v2, (CUcontext c))
API(cuCtxPopCurrent_v2, (CUcontext * c))
{
	*c = NULL;
	return 0;
}
NOTHING(cuCtxSynchronize, (void))
API(cuMemGetInfo_v2, (size_t *left, size_t *total))
{
	*left = *total = (size_t)141 << 30;
	return 0;
}
/* addresses that are never read */
API(cuMemAlloc_v2, (CUdeviceptr * p, size_t bytes))
{
	*p = 1ull << 40;
	return 0;
}
NOTHING(cuMemFree_v2, (CUdeviceptr p))
API(cuMemHostAlloc, (void **p, size_t bytes, unsigned flags))
{
	*p = calloc(1, bytes);
	return *p ? 0 : CU_OUT_OF_MEMORY;
}
API(cuMemFreeHost, (void *p))
{
	free(p);
	return 0;
}
API(cuMemHostGetDevicePointer_v2, (CUdeviceptr * d, void *p, unsigned flags))
{
	*d = (CUdeviceptr)(uintptr_t)p;
	return 0;
}
NOTHING(cuMemcpyHtoDAsync_v2, (CUdeviceptr to, const void *from, size_t bytes, CUstream s))
NOTHING(cuMemcpyDtoHAsync_v2, (void *to, CUdeviceptr from, size_t bytes, CUstream s))
NOTHING(cuMemcpyDtoDAsync_v2, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream s))
NOTHING(cuMemsetD8Async, (CUdeviceptr p, unsigned char v, size_t n, CUstream s))
API(cuModuleLoadData, (CUmodule * m, const void *image))
{
	*m = (CUmodule)(uintptr_t)8;
	return 0;
}
NOTHING(cuModuleUnload, (CUmodule m))
API(cuModuleGetFunction, (CUfunction * f, CUmodule m, const char *name))
{
	*f = (CUfunction)(uintptr_t)8;
	return 0;
}
API(cuFuncGetAttribute, (int *v, int attribute, CUfunction f))
{
	*v = 0;
	return 0;
}
NOTHING(cuFuncSetAttribute, (CUfunction f, int attribute, int v))
NOTHING(cuLaunchKernelEx, (const CudaLaunchConfig *c, CUfunction f, void **params, void **extra))
API(cuStreamCreate, (CUstream * s, unsigned flags))
{
	*s = (CUstream)(uintptr_t)8;
	return 0;
}
NOTHING(cuStreamDestroy_v2, (CUstream s))
NOTHING(cuStreamSynchronize, (CUstream s))
API(cuEventCreate, (CUevent * e, unsigned flags))
{
	*e = (CUevent)(uintptr_t)8;
	return 0;
}
NOTHING(cuEventDestroy_v2, (CUevent e))
NOTHING(cuEventRecord, (CUevent e, CUstream s))
NOTHING(cuEventSynchronize, (CUevent e))
NOTHING(cuEventQuery, (CUevent e))
API(cuDeviceCanAccessPeer, (int *can, CUdevice from, CUdevice to))
{
	*can = 0;
	return 0;
}
NOTHING(cuCtxEnablePeerAccess, (CUcontext of, unsigned flags))
API(cuLaunchHostFunc, (CUstream s, void (*fn)(void *user), void *user))
{
	fn(user);
	return 0;
}
NOTHING(cuStreamWaitEvent, (CUstream s, CUevent e, unsigned flags))
API(cuEventElapsedTime, (float *ms, CUevent a, CUevent b))
{
	*ms = 1;
	return 0;
}
NOTHING(cuStreamBeginCapture_v2, (CUstream s, int mode))
API(cuStreamEndCapture, (CUstream s, CUgraph *g))
{
	*g = (CUgraph)(uintptr_t)8;
	return 0;
}
API(cuGraphInstantiateWithFlags, (CUgraphExec * e, CUgraph g, unsigned long long flags))
{
	*e = (CUgraphExec)(uintptr_t)8;
	return 0;
}
NOTHING(cuGraphLaunch, (CUgraphExec e, CUstream s))
NOTHING(cuGraphUpload, (CUgraphExec e, CUstream s))
NOTHING(cuGraphDestroy, (CUgraph g))
NOTHING(cuGraphExecDestroy, (CUgraphExec e))
API(cuTensorMapEncodeTiled,
    (void *map, int type, unsigned rank, void *at, const uint64_t *dim, const uint64_t *stride,
     const unsigned *box, const unsigned *step, int interleave, int swizzle, int l2, int fill))
{
	return 0;
}

API(nvrtcVersion, (int *major, int *minor))
{
	*major = 13;
	*minor = 0;
	return 0;
}
API(nvrtcGetNumSupportedArchs, (int *n))
{
	*n = 1;
	return 0;
}
API(nvrtcGetSupportedArchs, (int *list))
{
	*list = 10 * NULL_CC_MAJOR + NULL_CC_MINOR;
	return 0;
}
__attribute__((visibility("default"))) const char *nvrtcGetErrorString(int r);
const char *
nvrtcGetErrorString(int r)
{
	return "null";
}
API(nvrtcCreateProgram, (NvrtcProgram * p, const char *source, const char *name, int n,
                         const char *const *h, const char *const *hn))
{
	*p = (NvrtcProgram)(uintptr_t)8;
	return 0;
}
API(nvrtcDestroyProgram, (NvrtcProgram * p))
{
	*p = NULL;
	return 0;
}
NOTHING(nvrtcCompileProgram, (NvrtcProgram p, int n, const char *const *option))
API(nvrtcGetProgramLogSize, (NvrtcProgram p, size_t *n))
{
	*n = 1;
	return 0;
}
API(nvrtcGetProgramLog, (NvrtcProgram p, char *log))
{
	*log = 0;
	return 0;
}
API(nvrtcGetCUBINSize, (NvrtcProgram p, size_t *n))
{
	*n = 8;
	return 0;
}
API(nvrtcGetCUBIN, (NvrtcProgram p, char *image))
{
	memcpy(image, "nothing", 8);
	return 0;
}
