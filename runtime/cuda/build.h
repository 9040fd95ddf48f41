/* Inside of building kernels for a GPU: build.c compiles, aot.c ships images with an artifact and takes them from there. */
#ifndef LLMC_RUNTIME_CUDA_BUILD_H
#define LLMC_RUNTIME_CUDA_BUILD_H

#include <pthread.h>

#include "runtime/cuda/cuda.h"

enum { CUDA_MAX_JOBS = 64 };

typedef struct CudaUnit {
	char        name[256];   /* file relative to the artifact, or "runtime/begin.cu" */
	const char *own;         /* kernel of the runtime; NULL: of the plan */
	Strbuf      source, image, path;
	char        key[65];     /* of source, options, architecture */
	bool        ready, shipped;
	llmc_status status;
	llmc_error  error;
} CudaUnit;

struct CudaBuild {
	const Plan      *plan;
	CudaBuildOptions opt;
	char             arch[16], plan_arch[16]; /* compiled for; that of images made ahead of time */
	Nvrtc            nvrtc;
	int              n_unit;
	CudaUnit        *unit;
	int             *unit_of;  /* [n_kernel] */
	/* the crew */
	atomic_int       next;
	pthread_mutex_t  lock;
	pthread_cond_t   news;
	int              done, left; /* under lock */
	int              todo, shown, n_thread;
	pthread_t        thread[CUDA_MAX_JOBS];
};

void        cuda_build_say(const CudaBuild *b, int level, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
llmc_status cuda_build_prepare(const Plan *plan, const CudaBuildOptions *opt, CudaBuild **out, llmc_error *err);
/* Start compiling what is not ready, into each unit's path. */
llmc_status cuda_build_compile(CudaBuild *b, llmc_error *err);

/* --- aot.c --- */
/* Take what ships with the artifact and fits the device. */
void        cuda_aot_use(CudaBuild *b);
/* There is no compiler (why) and not every image fits: what is here, what is wanted, and how to get it. */
llmc_status cuda_aot_lacks(const CudaBuild *b, const llmc_error *why, llmc_error *err);

#endif
