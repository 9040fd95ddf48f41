/* NCCL between GPUs, opened at run time. It moves bytes and adds nothing: an all-reduce is an
 * all-gather of the ranks' terms, and a kernel of ours adds them in the order of ranks, so the bits
 * equal those of rank_group.c. Communicators are non-blocking: calls wait for a missing rank until
 * the group ends, and then all communicators are aborted. */
#include "runtime/cuda/nccl.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"

enum { NCCL_OK = 0, NCCL_IN_PROGRESS = 7, NCCL_F32 = 7, NCCL_OLDEST = 21400 };

/* The first members of ncclConfig_t; size and version identify the layout of later members. */
typedef struct NcclConfig {
	size_t size;
	unsigned magic, version;
	int blocking, cga, min_ctas, max_ctas;
	const char *net;
	int split;
} NcclConfig;

#define NCCL_CALLS(X) \
	X(int, get_version, ncclGetVersion, (int *)) \
	X(int, unique_id, ncclGetUniqueId, (NcclId *)) \
	X(const char *, error_string, ncclGetErrorString, (int)) \
	X(int, group_start, ncclGroupStart, (void)) \
	X(int, group_end, ncclGroupEnd, (void)) \
	X(int, init, ncclCommInitRankConfig, (void **comm, int n, NcclId, int rank, NcclConfig *)) \
	X(int, async_error, ncclCommGetAsyncError, (void *comm, int *)) \
	X(int, destroy, ncclCommDestroy, (void *comm)) \
	X(int, give_up, ncclCommAbort, (void *comm)) \
	X(int, all_gather, ncclAllGather, (const void *send, void *receive, size_t count, int type, void *comm, CUstream))

struct Nccl {
	void *lib;
	char path[1024];
	int version, first, n;
	void *comm[LLMC_PEERS]; /* [n], ranks from `first` on */
	_Atomic bool aborted;
	/* held while a call uses the communicator, so that it is not aborted meanwhile */
	pthread_mutex_t in_call[LLMC_PEERS];
#define X(type, member, symbol, args) type(*member) args;
	NCCL_CALLS(X)
#undef X
};

static llmc_status
failed(const Nccl *l, int r, const char *what, llmc_error *err)
{
	return error_set(err, LLMC_E_DEVICE, "%s: NCCL (%s): %s (%d)", what, l->path,
	                 l->error_string(r), r);
}

static llmc_status
load(Nccl *l, llmc_error *err)
{
	const char *missing_compiler = NULL;

	l->lib = cuda_lib_open(cuda_nccl_names, l->path, sizeof l->path);
	if (!l->lib)
		return error_set(err, LLMC_E_MISSING,
		                 "libnccl.so.2 is not there: pip install nvidia-nccl-cu13");
#define X(type, member, symbol, args)                                                              \
	do {                                                                                       \
		void *at_ = dlsym(l->lib, #symbol);                                                \
		memcpy(&l->member, &at_, sizeof at_);                                              \
		missing_compiler = at_ || missing_compiler ? missing_compiler : #symbol;           \
	} while (0);
	NCCL_CALLS(X)
#undef X
	if (missing_compiler)
		return error_set(err, LLMC_E_MISSING,
		                 "%s is too old: it lacks %s; pip install nvidia-nccl-cu13",
		                 l->path, missing_compiler);
	if (l->get_version(&l->version) != NCCL_OK || l->version < NCCL_OLDEST)
		return error_set(
		    err, LLMC_E_MISSING,
		    "%s is of version %d.%d, 2.14 is needed; pip install nvidia-nccl-cu13", l->path,
		    l->version / 10000, l->version / 100 % 100);
	return LLMC_OK;
}

/* Calls return at once: poll until all communicators are ready, or one has failed. */
static llmc_status
wait_for_comms(Nccl *l, double until, llmc_error *err)
{
	for (int i = 0; i < l->n;) {
		int state = NCCL_OK, r = l->async_error(l->comm[i], &state);
		if (r != NCCL_OK || (state != NCCL_OK && state != NCCL_IN_PROGRESS))
			return failed(l, r != NCCL_OK ? r : state, "connecting ranks", err);
		if (state == NCCL_OK)
			i++;
		else if (clock_now() > until)
			return error_set(err, LLMC_E_DEVICE,
			                 "connecting ranks: NCCL (%s) did not finish in time",
			                 l->path);
		else
			nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
	}
	return LLMC_OK;
}

llmc_status
nccl_library(Nccl **out, llmc_error *err)
{
	Nccl *l = *out = calloc(1, sizeof *l);

	if (!l)
		return error_set(err, LLMC_E_MEMORY, "out of memory");
	for (int k = 0; k < LLMC_PEERS; k++)
		pthread_mutex_init(&l->in_call[k], NULL);
	llmc_status status = load(l, err);
	if (status != LLMC_OK) {
		nccl_close(l);
		*out = NULL;
	}
	return status;
}

llmc_status
nccl_id(const Nccl *l, NcclId *id, llmc_error *err)
{
	int r = l->unique_id(id);

	return r == NCCL_OK ? LLMC_OK : failed(l, r, "connecting ranks", err);
}

llmc_status
nccl_connect(Nccl *l, CudaDevice *const *dev, int first, int n, int all, const NcclId *id,
             int timeout_s, llmc_error *err)
{
	NcclConfig config = { .size = sizeof config,
		              .magic = 0xcafebeef,
		              /* the struct has the layout of the oldest supported version */
		              .version = (unsigned)NCCL_OLDEST,
		              .blocking = 0,
		              .cga = INT32_MIN,
		              .min_ctas = INT32_MIN,
		              .max_ctas = INT32_MIN,
		              .split = INT32_MIN };
	int r = l->group_start();
	bool opened = r == NCCL_OK;

	l->first = first;
	for (int k = 0; k < n && r == NCCL_OK; k++) {
		llmc_status status = cuda_enter(dev[k], err);
		if (status != LLMC_OK) {
			(void)l->group_end();
			return status;
		}
		r = l->init(&l->comm[k], all, *id, first + k, &config);
		r = r == NCCL_IN_PROGRESS ? NCCL_OK : r;
		cuda_leave(dev[k]);
		l->n = k + 1;
	}
	if (opened) { /* otherwise later calls of this thread would wait for the group */
		int end = l->group_end();
		r = r == NCCL_OK ? end : r;
	}
	if (r != NCCL_OK && r != NCCL_IN_PROGRESS)
		return failed(l, r, "connecting ranks", err);
	return wait_for_comms(l, clock_now() + timeout_s, err);
}

llmc_status
nccl_open(CudaDevice *const *dev, int n, int timeout_s, Nccl **out, llmc_error *err)
{
	llmc_status status = nccl_library(out, err);
	NcclId id;

	if (status != LLMC_OK)
		return status;
	status = nccl_id(*out, &id, err);
	if (status == LLMC_OK)
		status = nccl_connect(*out, dev, 0, n, n, &id, timeout_s, err);
	if (status != LLMC_OK) {
		nccl_abort(*out);
		nccl_close(*out);
		*out = NULL;
	}
	return status;
}

void
nccl_abort(Nccl *l)
{
	if (!l || atomic_exchange(&l->aborted, true))
		return;
	for (int k = 0; k < l->n; k++) {
		pthread_mutex_lock(&l->in_call[k]);
		if (l->comm[k])
			(void)!l->give_up(l->comm[k]);
		pthread_mutex_unlock(&l->in_call[k]);
	}
}

void
nccl_close(Nccl *l)
{
	if (!l)
		return;
	for (int k = 0; k < l->n && !atomic_load(&l->aborted); k++)
		(void)!l->destroy(l->comm[k]);
	/* unloaded only if nothing was aborted: aborted calls may still run in the library */
	if (l->lib && (!l->n || !atomic_load(&l->aborted)))
		dlclose(l->lib);
	for (int k = 0; k < LLMC_PEERS; k++)
		pthread_mutex_destroy(&l->in_call[k]);
	free(l);
}

llmc_status
nccl_all_gather(Nccl *l, int rank, const float *send, float *receive, int64_t count,
                CUstream stream, llmc_error *err)
{
	const int at = rank - l->first;
	int r = NCCL_OK;

	/* the lock is held briefly, because calls return at once; an aborted communicator must not
	 * be used */
	pthread_mutex_lock(&l->in_call[at]);
	if (!atomic_load(&l->aborted))
		r = l->all_gather(send, receive, (size_t)count, NCCL_F32, l->comm[at], stream);
	pthread_mutex_unlock(&l->in_call[at]);
	while (r == NCCL_IN_PROGRESS) { /* the call continues in the background */
		int seen = NCCL_OK;
		nanosleep(&(struct timespec){ .tv_nsec = 20000 }, NULL);
		pthread_mutex_lock(&l->in_call[at]);
		r = atomic_load(&l->aborted) || l->async_error(l->comm[at], &seen) != NCCL_OK
		        ? NCCL_OK
		        : seen;
		pthread_mutex_unlock(&l->in_call[at]);
	}
	return r == NCCL_OK || r == NCCL_IN_PROGRESS ? LLMC_OK : failed(l, r, "an all-gather", err);
}

int
nccl_version(const Nccl *l)
{
	return l->version;
}
