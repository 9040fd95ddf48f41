/* Between mpi.c, which opens MPI and starts it, and through.c, which runs steps over it: the library's calls. */
#ifndef LLMC_RUNTIME_COMM_MPI_H
#define LLMC_RUNTIME_COMM_MPI_H

#include <pthread.h>

#include "runtime/comm/inside.h"
#include "runtime/comm/world.h"

typedef void *Handle; /* of MPI: an address, or a number */

#define MPI_CALLS(X)                                                                               \
	X(initialized, "MPI_Initialized", (int *))                                                 \
	X(init, "MPI_Init_thread", (int *, char ***, int, int *))                                  \
	X(thread_level, "MPI_Query_thread", (int *))                                               \
	X(dup, "MPI_Comm_dup", (Handle, Handle *))                                                 \
	X(finalize, "MPI_Finalize", (void))                                                        \
	X(end_job, "MPI_Abort", (Handle, int))                                                      \
	X(rank, "MPI_Comm_rank", (Handle, int *))                                                  \
	X(size, "MPI_Comm_size", (Handle, int *))                                                  \
	X(split, "MPI_Comm_split", (Handle, int, int, Handle *))                                   \
	X(comm_free, "MPI_Comm_free", (Handle *))                                                  \
	X(split_type, "MPI_Comm_split_type", (Handle, int, int, Handle, Handle *))                 \
	X(iallgather, "MPI_Iallgather", (const void *, int, Handle, void *, int, Handle, Handle, Handle *)) \
	X(ibcast, "MPI_Ibcast", (void *, int, Handle, int, Handle, Handle *))                      \
	X(isend, "MPI_Isend", (const void *, int, Handle, int, int, Handle, Handle *))             \
	X(irecv, "MPI_Irecv", (void *, int, Handle, int, int, Handle, Handle *))                   \
	X(test, "MPI_Test", (Handle *, int *, void *))                                             \
	X(win_allocate, "MPI_Win_allocate_shared", (intptr_t, int, Handle, Handle, void *, Handle *)) \
	X(win_query, "MPI_Win_shared_query", (Handle, int, intptr_t *, int *, void *))             \
	X(win_free, "MPI_Win_free", (Handle *))                                                    \
	X(barrier, "MPI_Barrier", (Handle))


struct World {
	void  *lib;
	Handle world, byte, info_null, host; /* host: the ranks of this host */
	int    type_shared;
	int    rank_, ranks, on_host, at_host; /* at_host: its number there */
	bool   own_thread; /* a thread of ours may call MPI when it likes */
	bool   one_host, taken, given, ours, over; /* given: world is a program's communicator; ours: MPI was started here; over: and ended */
	atomic_bool     lost; /* a rank cannot be reached: whoever waits returns */
	pthread_mutex_t lock; /* around each call: MPI is told that they come one after the other */
#define X(member, symbol, args) int(*member) args;
	MPI_CALLS(X)
#undef X
	char   name[60];
};

/* One call of the library, which returns at once: w->member(...). A blocking one would keep signs of life from their turn; those are for start and end alone. */
#define MPI_CALL(w, member, ...) (pthread_mutex_lock(&(w)->lock), mpi_called(w, (w)->member(__VA_ARGS__)))

static inline int
mpi_called(World *w, int rc)
{
	pthread_mutex_unlock(&w->lock);
	return rc;
}

/* Until the request is done; false: a rank is lost. patient: an idle rank takes no processor. */
bool mpi_finish(World *w, Handle *request, bool patient);
/* n bytes of all ranks of `of`, side by side in `all` */
bool mpi_gather(World *w, Handle of, const void *x, size_t n, void *all);

/* A group whose steps go through MPI, on several hosts as well */
llmc_status comm_through(World *w, CommShape shape, Comm **out, llmc_error *err);

#endif
