/* Between mpi_library.c, which opens MPI and starts it, and mpi_comm.c, which runs steps over it:
 * the library's calls. */
#ifndef LLMC_RUNTIME_COMM_MPI_INTERNAL_H
#define LLMC_RUNTIME_COMM_MPI_INTERNAL_H

#include <pthread.h>

#include "runtime/comm/comm_internal.h"
#include "runtime/comm/mpi_world.h"

typedef void *MpiHandle; /* of MPI: an address, or a number */

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
	MpiHandle world, byte, info_null, host; /* host: the ranks of this host */
	int type_shared;
	int rank_, ranks, on_host, at_host;      /* at_host: its number there */
	bool own_thread;                         /* a thread of ours may call MPI when it likes */
	bool one_host, taken, given, ours, over; /* given: world is a program's communicator; ours:
	                                            MPI was started here; over: and ended */
	atomic_bool lost;     /* a rank cannot be reached: whoever waits returns */
	pthread_mutex_t lock; /* around each call: MPI is told that they come one after the other */
#define X(member, symbol, args) int(*member) args;
	MPI_CALLS(X)
#undef X
	char name[60];
};

/* One call of the library, which returns at once: w->member(...). A blocking one would keep signs
 * of life from their turn; those are for start and end alone. */
#define MPI_CALL(w, member, ...)                                                                   \
	(pthread_mutex_lock(&(w)->lock), mpi_called(w, (w)->member(__VA_ARGS__)))

static inline int
mpi_called(MpiWorld *w, int rc)
{
	pthread_mutex_unlock(&w->lock);
	return rc;
}

/* Until the request is done; false: a rank is lost. patient: an idle rank takes no processor. */
bool mpi_finish(MpiWorld *w, MpiHandle *request, bool patient);
/* n bytes of all ranks of `of`, side by side in `all` */
bool mpi_gather(MpiWorld *w, MpiHandle of, const void *x, size_t n, void *all);

/* A group whose steps go through MPI, on several hosts as well */
llmc_status comm_mpi(MpiWorld *w, CommShape shape, Comm **out, llmc_error *err);

#endif
