/* The part of the CUDA driver and NVRTC interfaces that llmc calls, declared here so that the build
 * does not need the vendor's headers. Numbers and layouts are those of these headers. */
#ifndef LLMC_RUNTIME_CUDA_DRIVER_ABI_H
#define LLMC_RUNTIME_CUDA_DRIVER_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;

enum { /* results that are handled differently */
       CU_OK = 0,
       CU_OUT_OF_MEMORY = 2,
       CU_DEINITIALIZED = 4,
       CU_STUB_LIBRARY = 34,
       CU_OLD_DRIVER = 35,
       CU_DEVICE_UNAVAILABLE = 46,
       CU_NO_DEVICE = 100,
       CU_INVALID_DEVICE = 101,
       CU_INVALID_IMAGE = 200,
       CU_NO_BINARY = 209,
       CU_ECC = 214,
       CU_NVLINK = 220,
       CU_CONTAINED = 226,
       CU_ILLEGAL_ADDRESS = 700,
       CU_LAUNCH_RESOURCES = 701,
       CU_PEERS_ALREADY = 704,
       CU_LAUNCH_TIMEOUT = 702,
       CU_CONTEXT_IS_DESTROYED = 709,
       CU_ASSERT = 710,
       CU_HARDWARE_STACK = 714,
       CU_ILLEGAL_INSTRUCTION = 715,
       CU_MISALIGNED = 716,
       CU_ADDRESS_SPACE = 717,
       CU_INVALID_PC = 718,
       CU_LAUNCH_FAILED = 719,
       CU_TENSOR_MEMORY_LEAK = 721,
       CU_NOT_READY = 600,
       CU_SYSTEM_NOT_READY = 802,
       CU_DRIVER_MISMATCH = 803,
       CU_MPS_RPC = 806,
       CU_MPS_TERMINATED = 810,
       CU_EXTERNAL_DEVICE = 911,
       CU_UNKNOWN = 999,
};
enum { /* attributes of devices and functions */
       CU_ATTR_SM_COUNT = 16,
       CU_ATTR_L2_BYTES = 38,
       CU_ATTR_MAJOR = 75,
       CU_ATTR_MINOR = 76,
       CU_ATTR_SM_SHARED = 81,
       CU_ATTR_COOPERATIVE = 95,
       CU_ATTR_SHARED_OPTIN = 97,
       CU_FUNC_STATIC_SHARED = 1,
       CU_FUNC_DYNAMIC_SHARED = 8,
       CU_FUNC_CARVEOUT = 9,
};
enum {
	CU_STREAM_NON_BLOCKING = 1,
	CU_EVENT_NO_TIMING = 2,
	CU_CAPTURE_THREAD_LOCAL = 1,
	CU_HOST_PORTABLE = 1,
	CU_HOST_MAPPED = 2
};
enum { CU_LAUNCH_COOPERATIVE = 2, CU_LAUNCH_CLUSTER = 4, CU_LAUNCH_PDL = 6 };

typedef struct CudaLaunchAttr {
	int id, pad;
	union {
		char pad[64];
		struct {
			unsigned x, y, z;
		} cluster;
		int pdl, cooperative;
	} value;
} CudaLaunchAttr;

typedef struct CudaLaunchConfig {
	unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
	CUstream stream;
	CudaLaunchAttr *attr;
	unsigned n_attr;
} CudaLaunchConfig;

_Static_assert(sizeof(CudaLaunchAttr) == 72 && sizeof(CudaLaunchConfig) == 56,
               "the driver's layouts");

/* X(member, symbol, arguments); all return CUresult */
#define CUDA_CALLS(X) \
	X(init, cuInit, (unsigned flags)) \
	X(driver_version, cuDriverGetVersion, (int *version)) \
	X(error_name, cuGetErrorName, (CUresult, const char **text)) \
	X(error_string, cuGetErrorString, (CUresult, const char **text)) \
	X(device_count, cuDeviceGetCount, (int *n)) \
	X(device_get, cuDeviceGet, (CUdevice *, int number)) \
	X(device_name, cuDeviceGetName, (char *name, int cap, CUdevice)) \
	X(device_attr, cuDeviceGetAttribute, (int *value, int attribute, CUdevice)) \
	X(device_total, cuDeviceTotalMem_v2, (size_t *bytes, CUdevice)) \
	X(ctx_retain, cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice)) \
	X(ctx_release, cuDevicePrimaryCtxRelease_v2, (CUdevice)) \
	X(ctx_push, cuCtxPushCurrent_v2, (CUcontext)) \
	X(ctx_pop, cuCtxPopCurrent_v2, (CUcontext *)) \
	X(ctx_sync, cuCtxSynchronize, (void)) \
	X(can_peer, cuDeviceCanAccessPeer, (int *can, CUdevice from, CUdevice to)) \
	X(peer_enable, cuCtxEnablePeerAccess, (CUcontext of, unsigned flags)) \
	X(mem_info, cuMemGetInfo_v2, (size_t *left, size_t *total)) \
	X(mem_alloc, cuMemAlloc_v2, (CUdeviceptr *, size_t bytes)) \
	X(mem_free, cuMemFree_v2, (CUdeviceptr)) \
	X(host_alloc, cuMemHostAlloc, (void **, size_t bytes, unsigned flags)) \
	X(host_free, cuMemFreeHost, (void *)) \
	X(host_device_ptr, cuMemHostGetDevicePointer_v2, (CUdeviceptr *, void *, unsigned flags)) \
	X(copy_up, cuMemcpyHtoDAsync_v2, (CUdeviceptr, const void *, size_t bytes, CUstream)) \
	X(copy_down, cuMemcpyDtoHAsync_v2, (void *, CUdeviceptr, size_t bytes, CUstream)) \
	X(copy_on, cuMemcpyDtoDAsync_v2, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream)) \
	X(set8, cuMemsetD8Async, (CUdeviceptr, unsigned char, size_t n, CUstream)) \
	X(set8_rows, cuMemsetD2D8Async, (CUdeviceptr, size_t pitch, unsigned char, size_t width, size_t height, CUstream)) \
	X(module_load, cuModuleLoadData, (CUmodule *, const void *image)) \
	X(module_unload, cuModuleUnload, (CUmodule)) \
	X(module_function, cuModuleGetFunction, (CUfunction *, CUmodule, const char *name)) \
	X(func_attr, cuFuncGetAttribute, (int *value, int attribute, CUfunction)) \
	X(func_set, cuFuncSetAttribute, (CUfunction, int attribute, int value)) \
	X(launch, cuLaunchKernelEx, (const CudaLaunchConfig *, CUfunction, void **params, void **extra)) \
	X(host_func, cuLaunchHostFunc, (CUstream, void (*fn)(void *user), void *user)) \
	X(stream_create, cuStreamCreate, (CUstream *, unsigned flags)) \
	X(stream_destroy, cuStreamDestroy_v2, (CUstream)) \
	X(stream_sync, cuStreamSynchronize, (CUstream)) \
	X(event_create, cuEventCreate, (CUevent *, unsigned flags)) \
	X(event_destroy, cuEventDestroy_v2, (CUevent)) \
	X(event_record, cuEventRecord, (CUevent, CUstream)) \
	X(event_sync, cuEventSynchronize, (CUevent)) \
	X(event_query, cuEventQuery, (CUevent)) \
	X(stream_wait_event, cuStreamWaitEvent, (CUstream, CUevent, unsigned flags)) \
	X(event_ms, cuEventElapsedTime, (float *ms, CUevent from, CUevent to)) \
	X(capture_begin, cuStreamBeginCapture_v2, (CUstream, int mode)) \
	X(capture_end, cuStreamEndCapture, (CUstream, CUgraph *)) \
	X(graph_make, cuGraphInstantiateWithFlags, (CUgraphExec *, CUgraph, unsigned long long flags)) \
	X(graph_launch, cuGraphLaunch, (CUgraphExec, CUstream)) \
	X(graph_upload, cuGraphUpload, (CUgraphExec, CUstream)) \
	X(graph_destroy, cuGraphDestroy, (CUgraph)) \
	X(graph_exec_destroy, cuGraphExecDestroy, (CUgraphExec))

/* Functions of newer drivers; NULL if this driver lacks them */
#define CUDA_NEWER_CALLS(X) \
	X(tensor_map, cuTensorMapEncodeTiled, (void *map, int type, unsigned rank, void *at, const uint64_t *dim, const uint64_t *stride, \
	                                       const unsigned *box, const unsigned *step, int interleave, int swizzle, int l2, int fill))

typedef struct CudaApi {
#define X(member, symbol, args) CUresult(*member) args;
	CUDA_CALLS(X)
	CUDA_NEWER_CALLS(X)
#undef X
} CudaApi;

typedef struct nvrtc_program *NvrtcProgram;
enum { NVRTC_OK = 0, NVRTC_OUT_OF_MEMORY = 1, NVRTC_COMPILATION = 6 };

#define NVRTC_CALLS(X) \
	X(int, version, nvrtcVersion, (int *major, int *minor)) \
	X(int, n_archs, nvrtcGetNumSupportedArchs, (int *n)) \
	X(int, archs, nvrtcGetSupportedArchs, (int *list)) \
	X(const char *, error_string, nvrtcGetErrorString, (int)) \
	X(int, create, nvrtcCreateProgram, (NvrtcProgram *, const char *source, const char *name, int n_header, const char *const *header, \
	                                    const char *const *header_name)) \
	X(int, destroy, nvrtcDestroyProgram, (NvrtcProgram *)) \
	X(int, compile, nvrtcCompileProgram, (NvrtcProgram, int n_option, const char *const *option)) \
	X(int, log_size, nvrtcGetProgramLogSize, (NvrtcProgram, size_t *)) \
	X(int, log, nvrtcGetProgramLog, (NvrtcProgram, char *)) \
	X(int, cubin_size, nvrtcGetCUBINSize, (NvrtcProgram, size_t *)) \
	X(int, cubin, nvrtcGetCUBIN, (NvrtcProgram, char *))

typedef struct NvrtcApi {
#define X(type, member, symbol, args) type(*member) args;
	NVRTC_CALLS(X)
#undef X
} NvrtcApi;

#endif
