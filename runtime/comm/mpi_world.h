/* Ranks that a launcher (mpirun, srun) has started, one process each. MPI is opened at run time,
 * and only if the launcher's environment shows several processes. */
#ifndef LLMC_RUNTIME_COMM_MPI_WORLD_H
#define LLMC_RUNTIME_COMM_MPI_WORLD_H

#include "runtime/comm/comm.h"

typedef struct MpiWorld MpiWorld;

/* Open the group that this process belongs to; *out is NULL without a launcher or with a single
 * process. comm: an MPI_Comm of a program that has started MPI; its processes form the group. NULL:
 * all processes. The first call opens and starts MPI, which involves all ranks. One model may use
 * the group; others get E_BUSY. mpi_world_close finalises MPI if it was started here, or aborts the
 * job if ranks are lost. A process that exits without this call is reported by the launcher as
 * failed. */
llmc_status mpi_world_open(const void *comm, MpiWorld **out, llmc_error *err);
void mpi_world_close(MpiWorld *w);
int mpi_world_rank(const MpiWorld *w);
int mpi_world_ranks(const MpiWorld *w);
int mpi_world_local_rank(const MpiWorld *w);  /* rank within the host, from 0 */
int mpi_world_local_ranks(const MpiWorld *w); /* ranks of this host */
/* Return the number of processors per rank of this host: those that the launcher has bound this
 * process to, else an equal share. */
int mpi_world_threads(const MpiWorld *w);

/* Agree on a status. All ranks call this at the same point, each with its own status. All return
 * E_OK, or all return the message of the first rank that failed, with its number and host. */
llmc_status mpi_world_agree(MpiWorld *w, llmc_status own, const llmc_error *why, llmc_error *err);
/* Check that consecutive ranks, `team` at a time, have the same text as the first of them (less
 * than 160 bytes). Otherwise all ranks get a message with `what`, the rank and its host. */
llmc_status mpi_world_check_same(MpiWorld *w, int team, const char *what, const char *text,
                                 llmc_error *err);
/* Create the group that runs steps, with all shape.ranks ranks. It uses shared memory if all ranks
 * are on one host, else MPI; with $LLMC_COMM=mpi always MPI. Close it before the world. */
llmc_status mpi_world_comm(MpiWorld *w, CommShape shape, Comm **out, llmc_error *err);
/* Send bytes from rank 0 outside of steps; the other ranks wait without using a core. */
bool mpi_world_broadcast(MpiWorld *w, const void *data, size_t n);
bool mpi_world_receive(MpiWorld *w, void *data, size_t n);

#endif
