/* Ranks that a launcher has started, each a process: mpirun, srun. MPI is opened at run time, and
 * only where a launcher says that this process is one of several. */
#ifndef LLMC_RUNTIME_COMM_MPI_WORLD_H
#define LLMC_RUNTIME_COMM_MPI_WORLD_H

#include "runtime/comm/comm.h"

typedef struct MpiWorld MpiWorld;

/* The group that this process is one of; *out NULL: there is no launcher, or it started this
 * process alone. comm: an MPI_Comm of a program that has started MPI: its processes, or NULL: all.
 * The first call opens MPI and starts it, which takes all ranks; one model has the group: E_BUSY
 * for others. mpi_world_close ends MPI, if it was started here, or the whole job where ranks are
 * lost; a process that ends without it is one that the launcher takes for dead. */
llmc_status mpi_world_open(const void *comm, MpiWorld **out, llmc_error *err);
void mpi_world_close(MpiWorld *w);
int mpi_world_rank(const MpiWorld *w);
int mpi_world_ranks(const MpiWorld *w);
int mpi_world_local_rank(const MpiWorld *w); /* among the ranks of its host, from 0 on */
/* Processors for each rank of this host: what the launcher has bound this process to, else an equal
 * share. */
int mpi_world_threads(const MpiWorld *w);

/* All ranks, at the same points. Each says how it fares: all have E_OK, or all the sentence of the
 * first that has not, with its rank and host. */
llmc_status mpi_world_agree(MpiWorld *w, llmc_status own, const llmc_error *why, llmc_error *err);
/* Of ranks that follow each other, `team` of them, each has the same text as the first (less than
 * 160 bytes): else all ranks have a sentence with `what`, the rank and its host. */
llmc_status mpi_world_check_same(MpiWorld *w, int team, const char *what, const char *text,
                                 llmc_error *err);
/* A group to run steps with, of all ranks (shape.ranks is theirs): through memory where all ranks
 * are on one host, else through MPI
 * ($LLMC_COMM = "mpi": in any case). It ends before the world is released. */
llmc_status mpi_world_comm(MpiWorld *w, CommShape shape, Comm **out, llmc_error *err);
/* Bytes from rank 0 outside of steps; the others wait without taking a processor. */
bool mpi_world_broadcast(MpiWorld *w, const void *data, size_t n);
bool mpi_world_receive(MpiWorld *w, void *data, size_t n);

#endif
