/* Declarations of the part of CUDA's driver and NVRTC interfaces that the emulator implements.
 * Numbers and layouts equal those of NVIDIA's headers, so those headers are not needed. The tests
 * in tests/emu call the functions through dlsym with these types. */
#ifndef EMU_CUDA_API_H
#define EMU_CUDA_API_H

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
typedef struct CUgraphNode_st *CUgraphNode;
typedef struct CUgraphExec_st *CUgraphExec;
typedef struct {
	char bytes[16];
} CUuuid;
typedef void (*CUhostFn)(void *user);
typedef size_t (*CUoccupancyB2DSize)(int block_size);

#define CUDA_ERRORS(X) \
	X(SUCCESS, 0, "no error") \
	X(ERROR_INVALID_VALUE, 1, "invalid argument") \
	X(ERROR_OUT_OF_MEMORY, 2, "out of memory") \
	X(ERROR_NOT_INITIALIZED, 3, "initialization error") \
	X(ERROR_DEINITIALIZED, 4, "driver shutting down") \
	X(ERROR_DEVICE_UNAVAILABLE, 46, "CUDA-capable device(s) is/are busy or unavailable") \
	X(ERROR_NO_DEVICE, 100, "no CUDA-capable device is detected") \
	X(ERROR_INVALID_DEVICE, 101, "invalid device ordinal") \
	X(ERROR_INVALID_IMAGE, 200, "device kernel image is invalid") \
	X(ERROR_INVALID_CONTEXT, 201, "invalid device context") \
	X(ERROR_NO_BINARY_FOR_GPU, 209, "no kernel image is available for execution on the device") \
	X(ERROR_ECC_UNCORRECTABLE, 214, "uncorrectable ECC error encountered") \
	X(ERROR_PEER_ACCESS_UNSUPPORTED, 217, "peer access is not supported between these two devices") \
	X(ERROR_INVALID_PTX, 218, "a PTX JIT compilation failed") \
	X(ERROR_NVLINK_UNCORRECTABLE, 220, "uncorrectable NVLink error detected during the execution") \
	X(ERROR_CONTAINED, 226, "Invalid access of peer GPU memory over nvlink or a hardware error") \
	X(ERROR_INVALID_SOURCE, 300, "device kernel image is invalid") \
	X(ERROR_FILE_NOT_FOUND, 301, "file not found") \
	X(ERROR_INVALID_HANDLE, 400, "invalid resource handle") \
	X(ERROR_ILLEGAL_STATE, 401, "the operation cannot be performed in the present state") \
	X(ERROR_NOT_FOUND, 500, "named symbol not found") \
	X(ERROR_NOT_READY, 600, "device not ready") \
	X(ERROR_ILLEGAL_ADDRESS, 700, "an illegal memory access was encountered") \
	X(ERROR_LAUNCH_OUT_OF_RESOURCES, 701, "too many resources requested for launch") \
	X(ERROR_LAUNCH_TIMEOUT, 702, "the launch timed out and was terminated") \
	X(ERROR_CONTEXT_IS_DESTROYED, 709, "context is destroyed") \
	X(ERROR_ASSERT, 710, "device-side assert triggered") \
	X(ERROR_PEER_ACCESS_ALREADY_ENABLED, 704, "peer access is already enabled") \
	X(ERROR_PEER_ACCESS_NOT_ENABLED, 705, "peer access has not been enabled") \
	X(ERROR_HOST_MEMORY_ALREADY_REGISTERED, 712, "part or all of the requested memory range is already mapped") \
	X(ERROR_HOST_MEMORY_NOT_REGISTERED, 713, "pointer does not correspond to a registered memory region") \
	X(ERROR_HARDWARE_STACK_ERROR, 714, "hardware stack error") \
	X(ERROR_ILLEGAL_INSTRUCTION, 715, "an illegal instruction was encountered") \
	X(ERROR_MISALIGNED_ADDRESS, 716, "misaligned address") \
	X(ERROR_INVALID_ADDRESS_SPACE, 717, "operation not supported on global/shared address space") \
	X(ERROR_INVALID_PC, 718, "invalid program counter") \
	X(ERROR_LAUNCH_FAILED, 719, "unspecified launch failure") \
	X(ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, 720, "too many blocks in cooperative launch") \
	X(ERROR_TENSOR_MEMORY_LEAK, 721, "tensor memory not completely freed") \
	X(ERROR_NOT_PERMITTED, 800, "operation not permitted") \
	X(ERROR_NOT_SUPPORTED, 801, "operation not supported") \
	X(ERROR_SYSTEM_DRIVER_MISMATCH, 803, "system has unsupported display driver / cuda driver combination") \
	X(ERROR_MPS_RPC_FAILURE, 806, "MPS server is not available") \
	X(ERROR_MPS_CLIENT_TERMINATED, 810, "the MPS client has been terminated by the server") \
	X(ERROR_STREAM_CAPTURE_UNSUPPORTED, 900, "operation not permitted when stream is capturing") \
	X(ERROR_STREAM_CAPTURE_INVALIDATED, 901, "operation failed due to a previous error during capture") \
	X(ERROR_STREAM_CAPTURE_MERGE, 902, "operation would result in a merge of separate capture sequences") \
	X(ERROR_STREAM_CAPTURE_UNMATCHED, 903, "capture was not ended in the same stream as it began") \
	X(ERROR_STREAM_CAPTURE_UNJOINED, 904, "capturing stream has unjoined work") \
	X(ERROR_STREAM_CAPTURE_ISOLATION, 905, "dependency created on uncaptured work in another stream") \
	X(ERROR_STREAM_CAPTURE_IMPLICIT, 906, "operation would make the legacy stream depend on a capturing blocking stream") \
	X(ERROR_CAPTURED_EVENT, 907, "operation not permitted on an event last recorded in a capturing stream") \
	X(ERROR_STREAM_CAPTURE_WRONG_THREAD, 908, "attempt to terminate a thread-local capture sequence from another thread") \
	X(ERROR_GRAPH_EXEC_UPDATE_FAILURE, 910, "the graph update was not performed because it included changes which violated constraints") \
	X(ERROR_EXTERNAL_DEVICE, 911, "an async error has occurred in external entity outside of CUDA") \
	X(ERROR_INVALID_CLUSTER_SIZE, 912, "a kernel launch error has occurred due to cluster misconfiguration") \
	X(ERROR_UNKNOWN, 999, "unknown error")

enum {
#define X(name, value, text) CUDA_##name = value,
	CUDA_ERRORS(X)
#undef X
};

enum { CU_STREAM_NON_BLOCKING = 1, CU_EVENT_DISABLE_TIMING = 2 };
enum {
	CU_STREAM_CAPTURE_MODE_GLOBAL,
	CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
	CU_STREAM_CAPTURE_MODE_RELAXED
};
enum {
	CU_STREAM_CAPTURE_STATUS_NONE,
	CU_STREAM_CAPTURE_STATUS_ACTIVE,
	CU_STREAM_CAPTURE_STATUS_INVALIDATED
};
enum {
	CU_GRAPH_NODE_TYPE_KERNEL,
	CU_GRAPH_NODE_TYPE_MEMCPY,
	CU_GRAPH_NODE_TYPE_MEMSET,
	CU_GRAPH_NODE_TYPE_HOST,
	CU_GRAPH_NODE_TYPE_EMPTY = 5
};

enum {
	CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 0,
	CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES = 1,
	CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES = 2,
	CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES = 3,
	CU_FUNC_ATTRIBUTE_NUM_REGS = 4,
	CU_FUNC_ATTRIBUTE_PTX_VERSION = 5,
	CU_FUNC_ATTRIBUTE_BINARY_VERSION = 6,
	CU_FUNC_ATTRIBUTE_CACHE_MODE_CA = 7,
	CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
	CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT = 9,
	CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 14,
};

enum {
	CU_LAUNCH_ATTRIBUTE_IGNORE = 0,
	CU_LAUNCH_ATTRIBUTE_COOPERATIVE = 2,
	CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION = 4,
	CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY = 3,
	CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION = 6,
	CU_LAUNCH_ATTRIBUTE_PRIORITY = 8,
	CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT = 14,
};

typedef union {
	char pad[64];
	int cooperative;
	struct {
		unsigned x, y, z;
	} clusterDim;
	int programmaticStreamSerializationAllowed;
	int priority;
} CUlaunchAttributeValue;

typedef struct {
	int id;
	char pad[8 - sizeof(int)];
	CUlaunchAttributeValue value;
} CUlaunchAttribute;

typedef struct {
	unsigned gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
	CUstream hStream;
	CUlaunchAttribute *attrs;
	unsigned numAttrs;
} CUlaunchConfig;

typedef struct {
	CUfunction func;
	unsigned gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
	void **kernelParams;
	void **extra;
	void *kern;
	CUcontext ctx;
} CUDA_KERNEL_NODE_PARAMS;

typedef struct {
	/* 0 success, 1 error, 2 topology changed, 3 node type changed, 5 parameters changed */
	int result;
	CUgraphNode errorNode, errorFromNode;
} CUgraphExecUpdateResultInfo;

#define CU_LAUNCH_PARAM_END ((void *)0)
#define CU_LAUNCH_PARAM_BUFFER_POINTER ((void *)1)
#define CU_LAUNCH_PARAM_BUFFER_SIZE ((void *)2)

typedef int nvrtcResult;
typedef struct nvrtc_program *nvrtcProgram;
enum {
	NVRTC_SUCCESS,
	NVRTC_ERROR_OUT_OF_MEMORY,
	NVRTC_ERROR_PROGRAM_CREATION_FAILURE,
	NVRTC_ERROR_INVALID_INPUT,
	NVRTC_ERROR_INVALID_PROGRAM,
	NVRTC_ERROR_INVALID_OPTION,
	NVRTC_ERROR_COMPILATION,
	NVRTC_ERROR_BUILTIN_OPERATION_FAILURE,
	NVRTC_ERROR_INTERNAL_ERROR = 11
};

#endif
