/* Entry points of the MPI library, for mpi_library.c, which opens and starts MPI, and mpi_comm.c,
 * which runs steps on it. */
#ifndef LLMC_RUNTIME_COMM_MPI_INTERNAL_H
#define LLMC_RUNTIME_COMM_MPI_INTERNAL_H

#include <pthread.h>

#include "runtime/comm/comm_internal.h"
#include "runtime/comm/mpi_world.h"

typedef void *MpiHandle; /* MPI handle: an address or a number */

#define MPI_CALLS(X)                                                                               \
	X(initialized, "MPI_Initialized", (int *))                                                 \
	X(init, "MPI_Init_thread", (int *, char ***, int, int *))                                  \
	X(thread_level, "MPI_Query_thread", (int *))                                               \
	X(dup, "MPI_Comm_dup", (MpiHandle, MpiHandle *))                                                 \
	X(finalize, "MPI_Finalize", (void))                                                        \
	X(end_job, "MPI_Abort", (MpiHandle, int))                                                      \
	X(rank, "MPI_Comm_rank", (MpiHandle, int *))                                                  \
	X(size, "MPI_Comm_size", (MpiHandle, int *))                                                  \
	X(split, "MPI_Comm_split", (MpiHandle, int, int, MpiHandle *))                                   \
	X(comm_free, "MPI_Comm_free", (MpiHandle *))                                                  \
	X(split_type, "MPI_Comm_split_type", (MpiHandle, int, int, MpiHandle, MpiHandle *))                 \
	X(iallgather, "MPI_Iallgather", (const void *, int, MpiHandle, void *, int, MpiHandle, MpiHandle, MpiHandle *)) \
	X(ibcast, "MPI_Ibcast", (void *, int, MpiHandle, int, MpiHandle, MpiHandle *))                      \
	X(isend, "MPI_Isend", (const void *, int, MpiHandle, int, int, MpiHandle, MpiHandle *))             \
	X(irecv, "MPI_Irecv", (void *, int, MpiHandle, int, int, MpiHandle, MpiHandle *))                   \
	X(test, "MPI_Test", (MpiHandle *, int *, void *))                                             \
	X(win_allocate, "MPI_Win_allocate_shared", (intptr_t, int, MpiHandle, MpiHandle, void *, MpiHandle *)) \
	X(win_query, "MPI_Win_shared_query", (MpiHandle, int, intptr_t *, int *, void *))             \
	X(win_free, "MPI_Win_free", (MpiHandle *))                                                    \
	X(barrier, "MPI_Barrier", (MpiHandle))

struct MpiWorld {
	void *lib;
	MpiHandle world, byte, info_null, host; /* host: communicator of the ranks of this host */
	int type_shared;
	int rank_, ranks, on_host, at_host; /* at_host: rank within the host */
	bool own_thread;                    /* llmc's own threads may call MPI at any time */
	/* taken: a model uses the group; given: world is the program's communicator; ours: llmc
	 * started MPI; over: MPI has been finalised */
	bool one_host, taken, given, ours, over;
	atomic_bool lost; /* a rank cannot be reached: waiting calls return */
	/* serialises calls, because MPI was initialised with MPI_THREAD_SERIALIZED */
	pthread_mutex_t lock;
#define X(member, symbol, args) int(*member) args;
	MPI_CALLS(X)
#undef X
	char name[60];
};

/* Make one library call that returns at once: w->member(...). Blocking calls would delay
 * heartbeats; they are only used at start and end. */
#define MPI_CALL(w, member, ...)                                                                   \
	(pthread_mutex_lock(&(w)->lock), mpi_called(w, (w)->member(__VA_ARGS__)))

static inline int
mpi_called(MpiWorld *w, int rc)
{
	pthread_mutex_unlock(&w->lock);
	return rc;
}

/* Wait until the request is done; false: a rank is lost. patient: an idle rank sleeps instead of
 * polling. */
bool mpi_finish(MpiWorld *w, MpiHandle *request, bool patient);
/* Gather n bytes of all ranks of `of` in `all`. */
bool mpi_gather(MpiWorld *w, MpiHandle of, const void *x, size_t n, void *all);

/* Create a group whose steps go through MPI; its ranks may be on several hosts */
llmc_status comm_mpi(MpiWorld *w, CommShape shape, Comm **out, llmc_error *err);

#endif
