/* Ranks that a launcher has started, each a process: mpirun, srun. MPI is opened at run time, and only where a launcher says that this
 * process is one of several. */
#ifndef LLMC_RUNTIME_COMM_WORLD_H
#define LLMC_RUNTIME_COMM_WORLD_H

#include "runtime/comm/comm.h"

typedef struct World World;

/* The group that this process is one of; *out NULL: there is no launcher, or it started this process alone. comm: an MPI_Comm of a program that has started MPI:
 * its processes, or NULL: all. The first call opens MPI and starts it, which takes all ranks; one model has the group: E_BUSY for others. world_release ends MPI, if it was started here, or the whole
 * job where ranks are lost; a process that ends without it is one that the launcher takes for dead. */
llmc_status world_take(const void *comm, World **out, llmc_error *err);
void        world_release(World *w);
int         world_rank(const World *w);
int         world_ranks(const World *w);
int         world_place(const World *w); /* among the ranks of its host, from 0 on */
/* Processors for each rank of this host: what the launcher has bound this process to, else an equal share. */
int         world_threads(const World *w);

/* All ranks, at the same points. Each says how it fares: all have E_OK, or all the sentence of the first that has not, with its rank and host. */
llmc_status world_agree(World *w, llmc_status own, const llmc_error *why, llmc_error *err);
/* Of ranks that follow each other, `team` of them, each has the same text as the first (less than 160 bytes): else all ranks have a sentence with `what`, the rank and its host. */
llmc_status world_same(World *w, int team, const char *what, const char *text, llmc_error *err);
/* A group to run steps with, of all ranks (shape.ranks is theirs): through memory where all ranks are on one host, else through MPI
 * ($LLMC_COMM = "mpi": in any case). It ends before the world is released. */
llmc_status world_comm(World *w, CommShape shape, Comm **out, llmc_error *err);
/* Bytes from rank 0 outside of steps; the others wait without taking a processor. */
bool        world_send(World *w, const void *data, size_t n);
bool        world_receive(World *w, void *data, size_t n);

#endif
