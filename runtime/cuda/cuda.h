/* One GPU: its driver, compiled kernels, weights and sessions. Private to runtime/. The driver and
 * its compiler are opened at run time; building llmc needs nothing of CUDA.
 *
 *   find_libraries.c    finds and opens the vendor's libraries
 *   driver_device.c     one device and its context; errors
 *   cuda_target.c       which plans and images a device runs
 *   nvrtc.c             source text to image
 *   kernel_source.c     a kernel's source as one text, and its key
 *   cuda_kernels.c      the kernels of a plan as images
 *   cuda_doctor.c       the CUDA part of `llmc doctor`
 *   upload_weights.c    weights through pinned buffers
 *   cuda_model.c        state shared by the sessions of a model
 *   cuda_session.c      memory of a session
 *   cuda_launch.c       one launch of a kernel
 *   cuda_step.c         one step: launches, graphs
 *   cuda_persistent.c   decode steps as one kernel
 *   tensor_map.c        tensor maps of steps
 *   cuda_sampler.c      steps that sample on the device
 *   cublaslt*.c         cuBLASLt for GEMMs of mixed steps
 *   cuda_device.c       the row in the table of devices
 *   profile.c           times of single ops
 *   rank_group.c        ranks on GPUs of one process
 *   nccl.c              collectives through NCCL; comm_algorithm.c chooses the way
 *   pipeline_stages.c   pipeline stages on GPUs of one process
 *
 * Every call makes the device's own context current and restores the previous one: a host program
 * that uses CUDA itself is not disturbed. */
#ifndef LLMC_RUNTIME_CUDA_H
#define LLMC_RUNTIME_CUDA_H

#include <stdatomic.h>

#include "base/strbuf.h"
#include "runtime/cuda/driver_abi.h"
#include "runtime/device.h"

extern const Device cuda_device; /* cuda_device.c */

/* ---- find_libraries.c ---- */

enum { CUDA_MIN_DRIVER = 11080 }; /* 11.8: launches with attributes */

/* Open the first of `name` (NULL-terminated) that is found. With $LLMC_CUDA_LIBDIR only that folder
 * and the Python wheels below it are searched, else the loader's paths and the usual toolkit
 * folders. path: where it was found. NULL: none */
void *cuda_lib_open(const char *const *name, char *path, size_t cap);
/* Open libcuda.so.1. It belongs to the driver and is in no wheel: if LLMC_CUDA_LIBDIR has NVRTC but
 * not libcuda, the system's libcuda is opened. */
llmc_status cuda_driver_open(void **lib, CudaApi *api, char *path, size_t cap, llmc_error *err);
extern const char *const cuda_nvrtc_names[], *const cuda_blaslt_names[], *const cuda_nccl_names[];

/* ---- driver_device.c ---- */

typedef struct CudaDevice {
	CudaApi api;
	void *lib;
	int number, driver; /* driver: CUDA version it supports, 12040 for 12.4 */
	CUdevice dev;
	CUcontext ctx;
	char name[128];
	int l2_bytes;
	int cc, n_sm, max_shared, sm_shared; /* shared memory: most per CTA, total per SM */
	int cooperative;                     /* 1: it has cooperative launches */
	size_t total_bytes;
	/* a call has failed in a way that breaks the context: only closing works */
	atomic_bool lost;
	/* the first failure that broke the context, for later calls: the call that failed may have
	 * dropped its error. The thread that sets `lost_named` writes both strings before `lost` */
	atomic_bool lost_named;
	char lost_at[512], lost_why[256];
} CudaDevice;

/* Open device `number`; with `context` its primary context is retained. */
llmc_status cuda_device_open(CudaDevice *d, int number, bool context, llmc_error *err);
void cuda_device_close(CudaDevice *d);
llmc_status cuda_enter(CudaDevice *d, llmc_error *err);
void cuda_leave(CudaDevice *d);
/* Set the error for a driver result; `what` describes the operation. */
llmc_status cuda_error(CudaDevice *d, CUresult r, llmc_error *err, const char *what, ...)
    __attribute__((format(printf, 4, 5)));
/* The text of a result: "an illegal memory access was encountered (CUDA_ERROR_ILLEGAL_ADDRESS)" */
void cuda_result_text(const CudaApi *api, CUresult r, char *buf, size_t cap);

/* Make a driver call; if it fails, return its status from the calling function. */
#define CUDA_TRY(d, call, ...)                                                                     \
	do {                                                                                       \
		CUresult cuda_r_ = (call);                                                         \
		if (cuda_r_ != CU_OK)                                                              \
			return cuda_error((d), cuda_r_, err, __VA_ARGS__);                         \
	} while (0)
/* Make a driver call that cleans up. Its error is ignored, except that a lost device is
 * recorded. */
#define CUDA_RELEASE(call)                                                                         \
	do {                                                                                       \
		if ((call) != CU_OK)                                                               \
			(void)!(call);                                                             \
	} while (0)

/* ---- cuda_target.c ---- */

/* Plan target for a device of compute capability cc (86 for 8.6): the target of the newest
 * architecture that the device runs; NULL: the device is too old */
const char *cuda_best_target(int cc);
/* Does a device run plans of this target after they are compiled for the device? */
bool cuda_runs(int cc, const char *target);
/* Architecture that a plan is compiled for on a device: "sm_90a"; a plan of sm_80 on a device of
 * 8.6 is compiled for sm_86. cc 0: ahead of time, for the plan's own target */
void cuda_arch(int cc, const char *target, char out[16]);
/* Do images for sm_<arch> run on a device? */
bool cuda_arch_fits(int arch, int cc);
/* Best target for GPU `number` of this machine. E_MISSING: no driver, no GPU; E_RANGE: no such
 * number. */
llmc_status cuda_target(int number, char out[32], llmc_error *err);
/* Do images of a plan that were built ahead of time run on a device? */
bool cuda_image_fits(const char *target, int cc);

/* ---- nvrtc.c ---- */

typedef struct Nvrtc {
	NvrtcApi api;
	void *lib;
	char path[1024];
	int major, minor;
	int n_arch, arch[64];
} Nvrtc;

/* Open NVRTC. E_MISSING: there is none, or none whose code this driver accepts (driver 0: any
 * version is accepted). */
llmc_status nvrtc_open(Nvrtc *n, int driver, llmc_error *err);
void nvrtc_close(Nvrtc *n);
/* Compile; *log receives NVRTC's log (may be NULL). E_CHECK: the source does not compile, see the
 * log. Any thread. */
llmc_status nvrtc_compile(const Nvrtc *n, const char *source, const char *name, const char *arch,
                          Strbuf *image, Strbuf *log, llmc_error *err);
extern const char nvrtc_options[]; /* all options as one string, part of the keys */

/* ---- kernel_source.c ---- */

/* A kernel's file with its includes expanded (#line keeps their names): the text that is compiled
 * is the text that is hashed. */
llmc_status cuda_source_read(const char *artifact, const char *file, Strbuf *out, llmc_error *err);
/* A kernel of the runtime itself, embedded in llmc ("runtime/begin.cu"). */
llmc_status cuda_source_embedded(const char *file, Strbuf *out, llmc_error *err);
/* Key of an image: hash of the source without its opening comment, options, architecture. */
void cuda_source_key(const Strbuf *source, const char *arch, char hex[65]);

/* ---- cuda_kernels.c ---- */

typedef struct CudaBuild CudaBuild;

typedef struct CudaBuildOptions {
	const char *artifact;
	int n_jobs;
	int cc, driver; /* cc of the device; 0: the plan's own architecture (ahead of time) */
	const char *device_name;
	bool cache_warned, skip_built; /* as in KernelBuildOptions */
	llmc_log_fn log;
	void *log_user;
} CudaBuildOptions;

/* Find images that exist and start compiling the others on background threads. The log function is
 * called on the caller's thread, from poll and wait. */
llmc_status cuda_build_start(const Plan *plan, const CudaBuildOptions *opt, CudaBuild **out,
                             llmc_error *err);
void cuda_build_poll(CudaBuild *b);
llmc_status cuda_build_wait(CudaBuild *b, llmc_error *err);
void cuda_build_close(CudaBuild *b); /* stops the compilation and waits for its threads */
/* Valid after wait. Units: each file of the plan once, then the runtime's own kernels. */
int cuda_build_units(const CudaBuild *b);
int cuda_build_unit_of(const CudaBuild *b, int kernel);
int cuda_build_own(const CudaBuild *b, const char *name); /* unit of a kernel of the runtime */
const Strbuf *cuda_build_image(const CudaBuild *b, int unit);
const char *cuda_build_name(const CudaBuild *b, int unit);
/* Call if an image did not load: compile it here, even if it was shipped. */
llmc_status cuda_build_again(CudaBuild *b, int unit, const char *why, llmc_error *err);
/* Compile all kernels of the plan into artifact/aot/sm_XX/ with a manifest. */
llmc_status cuda_build_ship(const Plan *plan, const CudaBuildOptions *opt, llmc_error *err);

/* ---- upload_weights.c ---- */

/* Load the weights of a plan into one block of device memory at `base`, each at offset[i]. poll:
 * called now and then. */
llmc_status cuda_weights_load(CudaDevice *d, Weights *w, const WeightsOptions *opt,
                              CUdeviceptr base, const int64_t *offset, int64_t bytes,
                              void (*poll)(void *user), void *poll_user, llmc_error *err);

/* ---- what a machine has ---- */

/* The CUDA part of `llmc doctor`: a JSON object (free() it) with driver, NVRTC, devices, cuBLASLt
 * and NCCL, each found or with how to install it. */
llmc_status cuda_describe(char **json, llmc_error *err);
/* Read bytes/s of a GPU's memory; 0: it could not be measured. */
double cuda_bandwidth(int number);

#endif
